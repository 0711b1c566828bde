"""Stochastic depth: blocks are really skipped, as often as they should be, and nothing changes on average."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import leantrain
from leantrain.depth import Depth, residual_blocks
from leantrain.errors import LeanError
from leantrain.models import build

SIDE = 16


def images(n: int = 64, channels: int = 3) -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(n, channels, SIDE, SIDE, generator=rng), torch.arange(n) % 4)


def form_of(lean: leantrain.Lean) -> Depth:
    kind = lean._presenter._kinds["depth"]
    assert isinstance(kind, Depth)
    return kind


class Steps(nn.Module):
    """Two blocks like those of timm's transformers, without anything but sums, so that expectations are exact."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop_path1, self.drop_path2 = nn.Identity(), nn.Identity()
            self.work = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.drop_path1(self.work(torch.ones_like(x)))
            return x + self.drop_path2(torch.ones_like(x))

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(self.Step(), self.Step())
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.passed = self.blocks(x.mean((2, 3)))
        out: Tensor = self.head(self.passed)
        return out


def test_what_reaches_the_head_is_the_same_on_average() -> None:
    torch.manual_seed(0)
    model, data = Steps(), images(2)
    lean = leantrain.attach(model, data, "stochastic-depth[skip=0.3]", epochs=400)
    whole = model.eval().blocks(data.tensors[0].mean((2, 3))).detach()
    model.train()
    seen = torch.zeros(2, 3)
    for _ in range(400):
        for batch in lean.loader(2):
            lean.loss(batch)
            seen[batch.index] += model.passed.detach() / 400
    assert torch.allclose(seen, whole, atol=0.3)
    model.eval()
    assert torch.allclose(model(data.tensors[0]), model.head(whole))  # and it is used as it is


@pytest.mark.parametrize(("name", "blocks"), [("resnet8", 3), ("resnet20", 9), ("test_resnet", 4), ("test_vit", 6)])
def test_blocks_are_skipped_as_often_as_they_should_be_and_less_is_computed(name: str, blocks: int) -> None:
    width = 4 if name.startswith("resnet") else None
    model = build(name, classes=4, channels=3, image_size=SIDE, width=width)
    found = residual_blocks(model)
    assert len(found) == blocks
    lean = leantrain.attach(model, images(), "stochastic-depth[skip=0.2]", epochs=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    work = [0.0]

    def note(layer: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        work[0] += output.numel() * math.prod(layer.weight.shape[1:]) / len(output)  # of one example

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(note)
    model.eval()(images(1).tensors[0])
    model.train()
    whole, work[0], skipped = work[0], 0.0, [0] * blocks
    steps = 0
    for _ in range(8):
        for batch in lean.loader(4):
            before = [[p.detach().clone() for p in block.ends[0].parameters()] for block in found]
            lean.loss(batch).backward()
            gone = [all(p.grad is None for n, p in b.block.named_parameters() if "downsample" not in n) for b in found]
            optimizer.step()
            optimizer.zero_grad()
            for number, (block, old) in enumerate(zip(found, before, strict=True)):
                skipped[number] += gone[number]
                if gone[number]:  # nor do momentum and weight decay move it
                    assert all(torch.equal(a, b) for a, b in zip(block.ends[0].parameters(), old, strict=True))
            steps += 1
    assert work[0] / steps / whole == pytest.approx(0.8, abs=0.06)
    assert lean.cost == pytest.approx(0.8 * 8 * 64)
    expected = [1 - survival for survival in form_of(lean).survivals(0.8)]
    assert [count / steps for count in skipped] == pytest.approx(expected, abs=0.15)
    assert expected == sorted(expected)  # late ones more often
    assert all("forward" not in vars(block.block) for block in found)


def test_parts_of_a_batch_skip_the_same_blocks() -> None:
    model = build("resnet8", classes=4, channels=3, image_size=SIDE, width=4)
    lean = leantrain.attach(model, images(), "stochastic-depth[skip=0.3]", epochs=1)
    called = list[int]()
    for number, block in enumerate(residual_blocks(model)):
        block.ends[0].register_forward_hook(lambda *_, number=number: called.append(number))
    for batch in lean.loader(8):
        called.clear()
        for part in batch.chunks(2):
            lean.loss(part)
        assert called[: len(called) // 2] == called[len(called) // 2 :]


def test_looking_is_with_all_blocks() -> None:
    model = build("resnet8", classes=4, channels=3, image_size=SIDE, width=4)
    lean = leantrain.attach(model, images(), "selective-backprop + stochastic-depth", epochs=1)
    looks = list[bool]()
    residual_blocks(model)[-1].ends[0].register_forward_hook(lambda module, *_: looks.append(not module.training))
    for batch in lean.loader(8):
        lean.loss(batch)
    assert sum(looks) == 8


@pytest.mark.parametrize(
    ("model", "skip", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), 0.1, "no residual blocks"),
        (Steps(), 0.9, "of 2 residual blocks, at most 0.42 can be"),
        (torch.compile(Steps()), 0.1, "compiled"),
    ],
)
def test_what_cannot_be_skipped_is_refused(model: nn.Module, skip: float, words: str) -> None:
    with pytest.raises(LeanError, match=words):
        leantrain.attach(model, images(), f"stochastic-depth[skip={skip}]", epochs=1)
