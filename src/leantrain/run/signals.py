"""Signals: SIGINT and SIGTERM ask for an orderly end; the same one again ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

STOP_WITH = "LEANTRAIN_STOP_WITH"
"""The environment variable by which a process that starts another one gives its number: they end together."""


class Interrupted(Exception):
    """SIGINT or SIGTERM came; what ran was saved and can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.exit_code = 128 + number


@contextlib.contextmanager
def on_stop(callback: Callable[[int], None], *, once: bool = True) -> Iterator[None]:
    """Call `callback` with the signal's number on the first SIGINT or SIGTERM; afterwards it acts as it did before.

    Args:
        once: False where a launcher passes on what the terminal has sent already; it ends the process by other means.
    """

    def heard(number: int, _frame: Any) -> None:
        if once:
            signal.signal(number, before[number])
        callback(number)

    before: dict[int, Any] = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with_parent() -> None:
    """Ask for an orderly end of this process when the one that started it is gone, where the environment says so.

    A killed process cannot tell its children, which would go on unseen, in folders that are to be resumed.
    """
    parent = os.environ.pop(STOP_WITH, None)  # not for the children of this one
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
