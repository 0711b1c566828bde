"""The command `leantrain`: one file per command; `program.py` puts them together.

Nothing of the program's own packages is imported here, so that a missing one can be reported in a sentence.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from leantrain.run.processes import leave

if TYPE_CHECKING:
    from leantrain.cli.program import cli as cli


def main(argv: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        from leantrain.cli.program import run

        code = run(argv)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "leantrain", *sys.stdlib_module_names):
            raise
        what = "is missing" if isinstance(error, ModuleNotFoundError) else f"cannot be imported: {error}"
        print(
            f"leantrain: the command needs more packages ({package} {what}): pip install 'leantrain[cli]'",
            file=sys.stderr,
        )
        code = 2
    leave(code)


def __getattr__(name: str) -> Any:
    if name != "cli":
        raise AttributeError(f"module 'leantrain.cli' has no attribute '{name}'")
    from leantrain.cli.program import cli

    return cli
