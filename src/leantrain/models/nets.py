"""Two small ResNets of our own, for small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Shortcut(nn.Conv2d):
    """A strided 1×1 convolution that also works for few channels on a CPU.

    There oneDNN's weight gradient writes past its workspace (channels_last, fewer than 16 input channels, several
    threads: uxlfoundation/oneDNN#6035), which ends the process. The same as a convolution of stride 1 over the pixels
    that the strided one visits is right, and about 10 % of a step slower, so the rest keeps the strided one.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.in_channels >= 16 or x.device.type != "cpu":
            return super().forward(x)
        down, across = self.stride
        return F.conv2d(x[..., ::down, ::across], self.weight)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.act = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(Shortcut(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        main = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        out: Tensor = self.act(main + self.downsample(x))
        return out


class SmallResNet(nn.Module):
    """A ResNet for small images: a 3×3 stem, three stages of basic blocks, each twice as wide as the one before.

    The names follow timm's (`forward_features`, `forward_head`, `global_pool`, `fc`), so that code which looks for a
    split point treats it like any other model.
    """

    def __init__(self, depth: int, *, classes: int, channels: int, width: int, dropout: float) -> None:
        super().__init__()
        self.num_classes, self.num_features = classes, 4 * width
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU(inplace=True)
        self.layer1 = _stage(width, width, depth, stride=1)
        self.layer2 = _stage(width, 2 * width, depth, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, depth, stride=2)
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.fc = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def get_classifier(self) -> nn.Module:
        return self.fc

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        out: Tensor = self.layer3(self.layer2(self.layer1(x)))
        return out

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _stage(inside: int, outside: int, depth: int, stride: int) -> nn.Sequential:
    blocks = [BasicBlock(inside if i == 0 else outside, outside, stride if i == 0 else 1) for i in range(depth)]
    return nn.Sequential(*blocks)
