"""An own loop over the ranks of torchrun, that saves a checkpoint after every step and goes on from it: see kills.py.

torchrun --standalone --nproc-per-node 2 benchmarks/_ranks.py --epochs 20 --out FOLDER
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import leantrain
from leantrain.files import write_atomically
from leantrain.run import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from _digits import LR, digits, small_cnn

BATCH_SIZE = 256


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--epochs", type=int, required=True)
    options.add_argument("--out", type=Path, required=True)
    arguments = options.parse_args()
    distributed.init_process_group("gloo")
    rank, out = distributed.get_rank(), arguments.out
    out.mkdir(parents=True, exist_ok=True)
    (out / f"rank-{rank}.pid").write_text(str(os.getpid()))
    model = small_cnn()
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    lean = leantrain.attach(trained, digits()[0], leantrain.MixTrain("cutmix"), epochs=arguments.epochs)
    distributed.barrier()  # rank 0 of the loop before has written its last
    files = [file for name in ("checkpoint.pt", "checkpoint-before.pt") if (file := out / name).exists()]
    if files:
        saved = checkpoint.load(*files)
        model.load_state_dict(saved["model"][rank])  # BatchNorm's statistics are each rank's own
        optimizer.load_state_dict(saved["optimizer"])
        lean.load_state_dict(saved["lean"])
    loader = lean.loader(batch_size=BATCH_SIZE)
    while not lean.finished:
        for batch in loader:
            optimizer.param_groups[0]["lr"] = LR * (1 - lean.progress)
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            state = lean.state_dict()  # all ranks together, as it gathers what they have recorded
            models: list[dict[str, torch.Tensor]] = [{} for _ in range(distributed.get_world_size())]
            distributed.all_gather_object(models, model.state_dict())
            if rank == 0:
                content = {"model": models, "optimizer": optimizer.state_dict(), "lean": state}
                checkpoint.save(out / "checkpoint.pt", content, keep=out / "checkpoint-before.pt")
    final = {"model": model.state_dict(), "ledger": lean.state_dict()["ledger"]}
    if rank == 0:
        write_atomically(out / "final.pt", lambda file: torch.save(final, file))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
