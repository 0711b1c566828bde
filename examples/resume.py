"""A run that is cut in the middle of an epoch goes on where it stopped and ends with the same bits.

`lean.state_dict()` holds the ledger, the epoch's plan and the place in it. Save it beside the model and the optimiser;
after `lean.load_state_dict` the next pass over the loader is the rest of the epoch that was cut.
"""

import tempfile
from pathlib import Path

import torch
from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn
from torch import nn

import leantrain  # + leantrain

train_set, test_set = digits()


def train(checkpoint: Path | None = None, stop_after: int | None = None) -> tuple[nn.Module, leantrain.Lean]:
    """Train to the end, or for `stop_after` steps; from the checkpoint on, if it is there."""
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    lean = leantrain.attach(model, train_set, method=leantrain.MixTrain("cutmix"), epochs=EPOCHS)  # + leantrain
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        lean.load_state_dict(saved["lean"])  # + leantrain
        print(f"goes on in epoch {lean.epoch + 1} after batch {lean.position} of {len(lean.plan)}")
    loader = lean.loader(batch_size=BATCH_SIZE)  # + leantrain
    scheduler = lean.scheduler(optimizer, "onecycle")  # + leantrain
    steps = 0
    while not lean.finished:  # + leantrain: instead of counting epochs, of which some are done already
        for batch in loader:  # + leantrain
            loss = lean.loss(batch)  # + leantrain
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            steps += 1
            if steps == stop_after and checkpoint is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "lean": lean.state_dict()}, checkpoint)  # + leantrain
                return model, lean
    return model, lean


uninterrupted, _ = train()
with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder) / "checkpoint.pt"
    train(checkpoint, stop_after=110)
    model, lean = train(checkpoint)

pairs = zip(uninterrupted.state_dict().values(), model.state_dict().values(), strict=True)
print("the same bits" if all(torch.equal(one, other) for one, other in pairs) else "other bits")
report(model, test_set, lean)
