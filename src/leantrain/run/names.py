"""Names of files and folders, made from what a user may have written."""

from __future__ import annotations


def legal_name(text: str, also: str = "") -> str:
    """The text with an underscore for every character that a file system or a shell may trip over.

    A chain of methods, "a + b", becomes "a+b".

    Args:
        also: characters that may stay, beside letters, digits and `-_.=+`.
    """
    return "".join(c if c.isalnum() or c in "-_.=+" + also else "_" for c in text.replace(" + ", "+"))
