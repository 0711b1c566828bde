"""Registries: what is chosen by name (methods, forms, scores, schedules) registers itself, from inside or outside.

Lists, help texts, error messages and tests follow from the registry, so adding a kind touches no other place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from leantrain.errors import LeanError, nearest
from leantrain.options import parse_named

T = TypeVar("T")
K = TypeVar("K", bound=type)
_NAME = re.compile(r"[a-z][a-z0-9-]*")


class Registry(Mapping[str, type[T]]):
    """Classes by their `name`, in the order of registration; `aliases` are understood but not listed.

    Args:
        what: what a member is called in messages, for example "method".
        hint: what a user may have forgotten where a name is not known.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        self._kinds: dict[str, type[T]] = {}
        self._aliases: dict[str, type[T]] = {}

    def register(self, kind: K) -> K:
        """Add a class under its `name` and its `aliases`; use it as a decorator.

        Registering a class again that was defined anew in the same place, as a notebook does, replaces it.
        """
        named: Any = kind
        if not isinstance(getattr(kind, "name", None), str):
            raise LeanError(f"{kind.__name__} has no `name`; give the class one, by which the {self.what} is known.")
        for name in (named.name, *getattr(kind, "aliases", ())):
            if not _NAME.fullmatch(name):
                raise LeanError(
                    f"a {self.what} is called '{name}', but names have lower-case letters, digits and hyphens only."
                )
            taken = self._kinds.get(name) or self._aliases.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (kind.__module__, kind.__qualname__):
                raise LeanError(f"there is a {self.what} '{name}' already, in {taken.__module__}; choose another name.")
        self._kinds[named.name] = kind
        self._aliases.update(dict.fromkeys(getattr(kind, "aliases", ()), kind))
        return kind

    def find(self, name: str) -> type[T]:
        """The class of that name or alias, or an error that lists what there is."""
        known = {**self._kinds, **self._aliases}
        if name not in known:
            listed = ", ".join(self._kinds)
            hint = nearest(name, known) or f" {self.hint}".rstrip()
            raise LeanError(f"{self.what} '{name}' is not known; there are {listed}.{hint}")
        return known[name]

    def parse(self, text: str) -> T:
        """An instance from its name and options, for example `random-backprop[keep=0.25]`."""
        return parse_named(text, self.find, self.what)

    def __getitem__(self, name: str) -> type[T]:
        return self._kinds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)
