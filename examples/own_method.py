"""Your own method, form and score: each a class that registers itself, and then works like the built-in ones.

They combine with every other method, resume, run in `attach`, and, given to the command as a plugin, in all of it:

    leantrain --plugin examples/own_method.py methods
    leantrain --plugin examples/own_method.py train --method "curriculum + crops[side=0.8]"
    leantrain --plugin examples/own_method.py score --method margin
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import leantrain


@leantrain.register_method
@dataclass(frozen=True)
class Curriculum(leantrain.Method):
    """The easiest examples first, by their recorded losses, and all of them at the end."""

    name: ClassVar[str] = "curriculum"
    begin: float = leantrain.option(0.4, "share of the examples that the first epochs train on", above=0, high=1)

    def draft(
        self, draft: leantrain.Draft, state: Any, ledger: leantrain.Ledger, moment: leantrain.Moment, rng: Any
    ) -> tuple[leantrain.Draft, Any]:
        share = self.begin + (1 - self.begin) * moment.progress
        loss = ledger["loss"].cpu()[draft.index].nan_to_num(nan=0.0)  # NaN: not trained on yet
        easiest = loss.argsort(stable=True)[: max(1, round(share * len(draft)))]
        return draft.take(easiest), state


@leantrain.register_form
class Cropped(leantrain.FormKind):
    """A window of every image; its value is the window's side as a share of the image's."""

    name = "cropped"

    @classmethod
    def size(cls, value: float) -> float:
        """What an input costs: the window's share of the pixels."""
        return value * value

    def fit(self, value: float) -> float:
        """Whole pixels only."""
        side = self.attached.example.shape[-1]
        return float(round(value * side) / side)

    def show(self, inputs: Tensor, value: float, batch: leantrain.Batch, ask: Any) -> leantrain.Answer:
        side = round(value * inputs.shape[-1])
        room = inputs.shape[-1] - side + 1
        place = 7 * batch.epoch + batch.position  # another window for every batch, and the same after a resume
        top, left = place % room, place // room % room
        return ask(inputs[..., top : top + side, left : left + side])


@leantrain.register_method
@dataclass(frozen=True)
class Crops(leantrain.Method):
    """Show a window of every image, until the last part of the run."""

    name: ClassVar[str] = "crops"
    after_mixing: ClassVar[bool] = True  # it looks at no single example, so it may follow a method that mixes them
    side: float = leantrain.option(0.75, "side of the window, as a share of the image's", above=0, high=1)
    until: float = leantrain.option(0.7, "share of the run after which images are whole", above=0, high=1)

    def forms(self, side: int) -> tuple[leantrain.Form, ...]:
        return (leantrain.Form.of(cropped=self.side),)

    def draft(
        self, draft: leantrain.Draft, state: Any, ledger: leantrain.Ledger, moment: leantrain.Moment, rng: Any
    ) -> tuple[leantrain.Draft, Any]:
        return draft.show("cropped", self.side), state


@leantrain.register_score
@dataclass(frozen=True)
class Margin(leantrain.Score):
    """How far the right class lies behind the best wrong one."""

    name: ClassVar[str] = "margin"
    title: ClassVar[str] = "Margin"

    def measure(self, model: nn.Module, inputs: Any, targets: Tensor) -> Tensor:
        chances = model(inputs).softmax(1)
        right = chances.gather(1, targets.unsqueeze(1)).squeeze(1)
        wrong = chances.scatter(1, targets.unsqueeze(1), 0.0).amax(1)
        return wrong - right


def main() -> None:
    from _digits import BATCH_SIZE, EPOCHS, LR, digits, report, small_cnn

    train_set, test_set = digits()
    scores = leantrain.score(small_cnn, train_set, "margin", models=1, epochs=1, batch_size=BATCH_SIZE)
    print(f"the smallest margin is that of digit {int(scores.values.argmax())}")

    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4)
    lean = leantrain.attach(model, train_set, "curriculum + mixtrain-cutmix + crops[side=0.8]", epochs=EPOCHS)
    scheduler = lean.scheduler(optimizer, "onecycle")
    for _ in range(EPOCHS):
        for batch in lean.loader(batch_size=BATCH_SIZE):
            lean.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    report(model, test_set, lean)


if __name__ == "__main__":
    main()
