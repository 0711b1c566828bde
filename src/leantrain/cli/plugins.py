"""Plugins: a user's own code, imported before a command runs, so that what it registers is known by name everywhere."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from leantrain.errors import LeanError

VARIABLE = "LEANTRAIN_PLUGINS"
"""The environment variable that names plugins, separated as in PATH; child processes know them from it too."""

GROUP = "leantrain.plugins"
"""The entry points by which an installed package offers its plugins."""


def load_plugins(named: Sequence[str] = ()) -> None:
    """Import the plugins of installed packages, of the environment and of `--plugin`, in this order.

    Args:
        named: Python files or modules; they are put into the environment for child processes.

    Raises:
        LeanError: one is missing or cannot be imported.
    """
    for point in importlib.metadata.entry_points(group=GROUP):
        _import(f"{point.name} ({point.value})", point.load)
    known = [name for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    wanted = list(dict.fromkeys([*known, *(_absolute(name) for name in named)]))
    for name in wanted:
        if _is_file(name):
            _import(name, lambda file=name: _import_file(Path(file)))  # type: ignore[misc]
        else:
            _import(name, lambda module=name: importlib.import_module(module))  # type: ignore[misc]
    if named:
        os.environ[VARIABLE] = os.pathsep.join(wanted)


def _is_file(name: str) -> bool:
    return name.endswith(".py") or os.sep in name or "/" in name


def _absolute(name: str) -> str:
    return str(Path(name).expanduser().absolute()) if _is_file(name) else name


def _import(name: str, load: Callable[[], object]) -> None:
    try:
        load()
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LeanError(
            f"the plugin '{name}' cannot be imported: {reason.rstrip('.')}; fix it or leave it out."
        ) from error


def _import_file(path: Path) -> None:
    """Import a file once per process, under a name that no other module has."""
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    name = f"leantrain_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
