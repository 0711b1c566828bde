"""Bundles: which dimensions of which tensors of a model stand for the same channels, found by watching it at work.

One trial pass is followed operation by operation, so any model is understood whose channels go through convolutions,
linear layers, BatchNorm, sums, pools and the like, however it is written; what else meets a channel makes it stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FEW = 16
"""Fewer input channels than these crash a strided 1×1 convolution on CPUs (uxlfoundation/oneDNN#6035)."""

Role = Literal["makes", "reads", "carries"]


class Slot(NamedTuple):
    """A dimension of a tensor that has an entry for every channel of a bundle, or several side by side.

    Attributes:
        tensor: its name in the model.
        dim: which of its dimensions.
        inner: entries per channel; more than one where a map was flattened.
        role: whether it is a weight that makes the channel, one that reads it, or something that goes along with it,
            such as BatchNorm's.
    """

    tensor: str
    dim: int
    inner: int
    role: Role


class Bundle(NamedTuple):
    """Channels that several tensors share, as those of all layers along a residual path do.

    Attributes:
        name: of the first tensor that makes them.
        full: how many there are in the whole model.
        least: how many must stay.
        slots: where they are.
    """

    name: str
    full: int
    least: int
    slots: tuple[Slot, ...]


class _Label(NamedTuple):
    """That a dimension stands for the channels of a node, each of which has so many entries side by side."""

    node: int
    inner: int = 1


_Labels = tuple[_Label | None, ...]

_SAME = {
    "clone", "detach", "alias", "contiguous", "_to_copy", "lift_fresh", "native_dropout", "constant_pad_nd",
    "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d", "reflection_pad2d",
    "upsample_nearest2d", "upsample_bilinear2d",
}  # fmt: skip
"""Operations that treat every channel by itself and leave it in its place."""

_NORMS = {
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm",
    "miopen_batch_norm", "_batch_norm_with_update", "_batch_norm_no_update",
}  # fmt: skip
"""BatchNorm, by the names that it has on several devices."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows channels through every operation of a pass, and notes which dimensions must have the same.

    Nodes are dimensions of tensors of the model, joined where an operation needs them alike (union-find; a node may be
    another's channels times a number of entries each, after flattening). Where an operation is not known, what it is
    given is frozen.

    Attributes:
        positions: by weight, how often it is applied, over all examples.
        depthwise: weights of convolutions with one channel per group.
        strided: weights of strided 1×1 convolutions.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.positions: dict[str, float] = {}
        self.depthwise: set[str] = set()
        self.strided: set[str] = set()
        self._names = names
        self._ports: list[tuple[str, int]] = []  # by node, its tensor and dimension
        self._parent: list[_Label] = []
        self._size: list[int] = []
        self._frozen: list[bool] = []
        self._roles: dict[int, Role] = {}
        self._labels: dict[int, _Labels] = {}
        self._held: list[Tensor] = []  # so that no other tensor gets their id

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor):
            labels = self._through(name, func, args, kwargs or {}, first)
            if labels is None:
                self.freeze((args, kwargs))
                labels = (None,) * first.ndim
            self._labels[id(first)] = labels
            self._held.append(first)
        return output

    def _through(self, name: str, func: Any, args: Any, kwargs: Any, output: Tensor) -> _Labels | None:
        """The labels of an operation's output; None where it is not known what it does to channels."""
        if name == "convolution":
            return self._convolution(args, output)
        if name in ("mm", "addmm"):
            return self._product(args, output)
        if name in _NORMS:
            return self._normalised(args)
        if torch.Tag.pointwise in func.tags:
            return self._pointwise([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)], output)
        given = self._of(args[0]) if args and isinstance(args[0], Tensor) else ()
        if name in _SAME:
            sizes = zip(args[0].shape, output.shape, given, strict=True)
            return None if any(label is not None and size != now for size, now, label in sizes) else given
        if name == "cat":
            return self._joined(args[0], args[1] if len(args) > 1 else 0)
        if name in ("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand"):
            return self._viewed(args[0], output)
        if name in ("t", "transpose", "permute"):
            return self._permuted(name, args, given)
        if name in ("mean", "sum", "amax"):
            return self._reduced(args, given, output)
        if name == "slice":
            dim = args[1] if len(args) > 1 else 0
            if args[0].shape[dim] != output.shape[dim]:
                self._freeze_label(given[dim])
            return given
        return None

    # -- operations --------------------------------------------------------------------------------------------------

    def _convolution(self, args: Any, output: Tensor) -> _Labels | None:
        inputs, weight, bias, stride = args[:4]
        groups, transposed = args[8], args[6]
        name = self._names.get(id(weight))
        given, (outer, inner, *_) = self._of(inputs), self._of(weight)
        if name is None or transposed:
            return None
        self.positions[name] = self.positions.get(name, 0.0) + output.numel() / output.shape[1]
        if groups == 1:
            self._join(given[1], inner)
            self._play(outer, "makes")
            self._play(inner, "reads")
            if math.prod(weight.shape[2:]) == 1 and max(stride) > 1:
                self.strided.add(name)
        elif groups == weight.shape[0] and weight.shape[1] == 1:
            self._join(given[1], outer)
            self._freeze_label(inner)
            self.depthwise.add(name)
        else:
            for label in (given[1], outer, inner):
                self._freeze_label(label)
        if bias is not None:
            self._join(self._of(bias)[0], outer)
        return (None, outer, *(None,) * (output.ndim - 2))

    def _product(self, args: Any, output: Tensor) -> _Labels | None:
        *bias, inputs, weight = args[:3] if len(args) > 2 else args
        (_, given), (inner, outer) = self._of(inputs), self._of(weight)
        if inner is None or outer is None or self._of(inputs)[0] is not None:
            return None
        name = self._ports[inner.node][0]
        self.positions[name] = self.positions.get(name, 0.0) + output.shape[0]
        self._join(given, inner)
        self._play(inner, "reads")
        self._play(outer, "makes")
        for one in bias:
            self._join(self._of(one)[-1], outer)
        return None, outer

    def _normalised(self, args: Any) -> _Labels:
        given = self._of(args[0])
        for one in args[1:5]:
            if isinstance(one, Tensor):
                self._join(given[1], self._of(one)[0])
        return given

    def _pointwise(self, tensors: Sequence[Tensor], output: Tensor) -> _Labels:
        labels = list[_Label | None]()
        for back in range(output.ndim, 0, -1):
            here = [self._of(one)[-back] for one in tensors if one.ndim >= back and one.shape[-back] > 1]
            for label in here[1:]:
                self._join(here[0], label)
            labels.append(here[0] if here else None)
        return tuple(labels)

    def _joined(self, tensors: Sequence[Tensor], dim: int) -> _Labels:
        labels = [self._of(one) for one in tensors]
        dim %= tensors[0].ndim
        found = list[_Label | None]()
        for place, column in enumerate(zip(*labels, strict=True)):
            for label in column:
                if place == dim:
                    self._freeze_label(label)
                else:
                    self._join(column[0], label)
            found.append(None if place == dim else column[0])
        return tuple(found)

    def _viewed(self, tensor: Tensor, output: Tensor) -> _Labels | None:
        given = self._of(tensor)
        if tensor.numel() != output.numel():  # expanded
            padded: _Labels = (*(None,) * (output.ndim - tensor.ndim), *given)
            return tuple(label if output.shape[place] > 1 else None for place, label in enumerate(padded))
        if id(tensor) in self._names and tensor.ndim > 1:
            return None
        old = [(size, label) for size, label in zip(tensor.shape, given, strict=True) if size > 1]
        new, labels = [place for place, size in enumerate(output.shape) if size > 1], dict[int, _Label | None]()
        while old and new:
            size, label = old.pop(0)
            place = new.pop(0)
            wide, inner = output.shape[place], 1
            while size * inner < wide and old:  # flattened into it
                more, other = old.pop(0)
                inner *= more
                self._freeze_label(other)
            if size * inner != wide:
                return None
            labels[place] = None if label is None else _Label(label.node, label.inner * inner)
        return tuple(labels.get(place) for place in range(output.ndim))

    def _permuted(self, name: str, args: Any, given: _Labels) -> _Labels:
        if name == "permute":
            return tuple(given[place] for place in args[1])
        first, second = (args[1], args[2]) if name == "transpose" else (0, -1)
        labels = list(given)
        labels[first], labels[second] = labels[second], labels[first]
        return tuple(labels)

    def _reduced(self, args: Any, given: _Labels, output: Tensor) -> _Labels:
        dims = args[1] if len(args) > 1 else None
        gone = {dim % len(given) for dim in ([dims] if isinstance(dims, int) else dims or range(len(given)))}
        for dim in gone:
            self._freeze_label(given[dim])
        if output.ndim == len(given):
            return tuple(None if dim in gone else label for dim, label in enumerate(given))
        return tuple(label for dim, label in enumerate(given) if dim not in gone)

    # -- what belongs together ---------------------------------------------------------------------------------------

    def _of(self, tensor: Tensor) -> _Labels:
        """The labels of a tensor; one of the model has a node for every dimension, in which a kernel's do not count."""
        if id(tensor) in self._labels:
            return self._labels[id(tensor)]
        name = self._names.get(id(tensor))
        if name is None:
            return (None,) * tensor.ndim
        labels: _Labels = tuple(self._node(name, dim, size) for dim, size in enumerate(tensor.shape[:2]))
        if tensor.ndim == 3:  # none of the layers that are known has such
            self._freeze_labels(labels)
        labels += (None,) * (tensor.ndim - 2)
        self._labels[id(tensor)] = labels
        return labels

    def _node(self, name: str, dim: int, size: int) -> _Label:
        node = len(self._parent)
        self._parent.append(_Label(node))
        self._size.append(size)
        self._frozen.append(False)
        self._ports.append((name, dim))
        return _Label(node)

    def _root(self, label: _Label) -> _Label:
        node, inner = label
        while self._parent[node].node != node:
            node, inner = self._parent[node].node, inner * self._parent[node].inner
        return _Label(node, inner)

    def _join(self, one: _Label | None, other: _Label | None) -> None:
        if one is None or other is None:
            self._freeze_labels((one, other))
            return
        one, other = self._root(one), self._root(other)
        if one == other:
            return
        if one.inner < other.inner:
            one, other = other, one
        fits = self._size[one.node] * one.inner == self._size[other.node] * other.inner
        if one.node == other.node or one.inner % other.inner or not fits:
            self._freeze_labels((one, other))
            return
        self._parent[other.node] = _Label(one.node, one.inner // other.inner)
        self._frozen[one.node] |= self._frozen[other.node]

    def _play(self, label: _Label | None, role: Role) -> None:
        """Note what a weight's dimension does; one that does both, as where a layer is used twice, still reads."""
        if label is not None and self._roles.get(label.node) != "reads":
            self._roles[label.node] = role

    def _freeze_label(self, label: _Label | None) -> None:
        if label is not None:
            self._frozen[self._root(label).node] = True

    def _freeze_labels(self, labels: Iterable[_Label | None]) -> None:
        for label in labels:
            self._freeze_label(label)

    def freeze(self, tree: Any) -> None:
        """Let the channels of these tensors stay as they are."""
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor):
                self._freeze_labels(self._of(leaf))

    def bundles(self, crashing: set[str]) -> tuple[Bundle, ...]:
        """What may be removed: made by some weights and read by others.

        Args:
            crashing: weights that need some input channels at least.
        """
        slots: dict[int, list[Slot]] = {}
        for node, (name, dim) in enumerate(self._ports):
            label = self._root(_Label(node))
            if not self._frozen[label.node]:
                role = self._roles.get(node, "carries")
                slots.setdefault(label.node, []).append(Slot(name, dim, label.inner, role))
        found = []
        for root, own in slots.items():
            made = [slot for slot in own if slot.role == "makes"]
            if made and any(slot.role == "reads" for slot in own):
                few = any(slot.role == "reads" and slot.tensor in crashing for slot in own)
                full = self._size[root]
                found.append(Bundle(made[0].tensor, full, min(FEW, full) if few else 1, tuple(own)))
        return tuple(found)
