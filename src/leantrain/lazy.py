"""What is put off until it is needed, so that importing a package stays fast: its public names, and a preparation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`.

    Args:
        homes: by public name, the module of the package that has it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        return [*vars(sys.modules[package]), *homes]

    return get, names


class BeforeImport:
    """Calls `prepare` of a module of ours right before somebody first imports another package, and never otherwise."""

    def __init__(self, package: str, module: str) -> None:
        self.package, self.module = package, module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Find nothing: those who come after it do that."""
        if name == self.package and self in sys.meta_path:
            sys.meta_path.remove(self)
            importlib.import_module(self.module).prepare()
