"""Several processes: who this one is among those that torchrun started, and how `--devices` has it start them."""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from leantrain.errors import LeanError

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(minutes=30)
"""How long a process waits for one that is alive and does not answer; one that is dead is noticed at once."""


def started() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def count() -> int:
    """How many processes train together."""
    return int(os.environ["WORLD_SIZE"]) if started() else 1


def rank() -> int:
    """This process's number among them; the first one writes and speaks."""
    return int(os.environ["RANK"]) if started() else 0


def is_restart() -> bool:
    """Whether torchrun started the processes anew, as one of them had died."""
    return started() and _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def own_device(device: torch.device) -> torch.device:
    """The device of this process: with several GPUs, each has its own."""
    import torch

    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if count() > 1 and device.type == "cuda" else device


def connect(device: torch.device) -> None:
    """Let the processes that torchrun started know each other; nothing to do in a single one."""
    import torch
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    own = own_device(device)
    if own.type == "cuda" and own.index is not None:  # torch takes no other
        torch.cuda.set_device(own)
    if count() == 1 or torch.distributed.is_initialized():
        return
    store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        # torchrun may keep its store when it starts processes anew: the addresses of the dead are still in it.
        store=PrefixStore(f"attempt-{_restarts()}", store),
        rank=rank(),
        world_size=count(),
        timeout=PATIENCE,
    )


def leave(code: int) -> NoReturn:
    """End the process; one of several at once, without taking Python down first.

    Gloo's threads hold a collective's tensors for a moment after it. Where Python goes down in that moment, such a
    thread aborts the process, and torchrun takes a finished run for a failed one.
    """
    if not started():
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launch(devices: int, nodes: int, words: Sequence[str]) -> int:
    """Run the command `words` in that many processes per machine, as `torchrun` does, and return its exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    where = ["--standalone"]
    if nodes > 1:
        missing = [name for name in ("MASTER_ADDR", "NODE_RANK") if name not in os.environ]
        if missing:
            raise LeanError(
                f"--nodes is {nodes}, but the environment has no {' and no '.join(missing)}; on every machine set "
                "MASTER_ADDR to the first one's address and NODE_RANK to its own number, from 0."
            )
        names = {"--master-addr": "MASTER_ADDR", "--master-port": "MASTER_PORT", "--node-rank": "NODE_RANK"}
        where = [f"{flag}={os.environ[name]}" for flag, name in names.items() if name in os.environ]
    flags = [*where, "--nnodes", str(nodes), "--nproc-per-node", str(devices), "-m", "leantrain", *words]
    try:
        torchrun.run(torchrun.parse_args(flags))  # type: ignore[no-untyped-call]
    except SignalException as stop:
        return 128 + int(stop.sigval)
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code for code in codes if code > 0), 1)
    return 0


def lost(error: BaseException) -> str | None:
    """The sentence for an error that says another process has gone; None for any other error."""
    if count() == 1 or not isinstance(error, RuntimeError):
        return None
    torch = sys.modules["torch"]
    text = str(error)
    known = isinstance(error, torch.distributed.DistError) or any(word in text for word in ("gloo", "NCCL", "c10d"))
    if not known:
        return None
    # Without the place in the library's source before it, and its advice after it.
    why = re.sub(r"\[/[^\]]*\]\s*", "", text.splitlines()[0]).split(". ")[0] if text else type(error).__name__
    return (
        f"another of the {count()} processes that train together has gone ({why}); go on from the last checkpoint with "
        "the same command and --resume."
    )
