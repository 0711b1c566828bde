"""Channels: removing some from a model, or adding some, in every tensor that holds them, the optimiser's as well."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leantrain.bundles import Bundle, Slot, Watch
from leantrain.errors import LeanError
from leantrain.eval_mode import first_look, trial


class Channels:
    """The channels of a model that can be removed and added, with what is kept beside them: BatchNorm's, the momentum.

    Args:
        model: the model itself, out of whatever wraps it. Its parameters are replaced by smaller or larger ones.
        example: two images as it sees them.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self._model = model
        self._owners: dict[str, list[tuple[nn.Module, str]]] = {}
        names: dict[int, str] = {}
        for prefix, module in model.named_modules(remove_duplicate=False):
            held = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            for own, tensor in held:
                name = names.setdefault(id(tensor), f"{prefix}.{own}" if prefix else own)
                self._owners.setdefault(name, []).append((module, own))
        watch = Watch({id(self._tensor(name)): name for name in self._owners})
        with first_look(model, type(model).__name__), watch:
            output = model(example)
        watch.freeze(getattr(output, "logits", output))
        self._depthwise = watch.depthwise
        self.bundles = watch.bundles({name for name in self._owners if self._crashes_with_few(name, watch)})
        if not any(self._tensor(slot.tensor).ndim > 2 for one in self.bundles for slot in one.slots):
            raise LeanError(
                f"{type(model).__name__} has no convolution whose channels could be removed; choose a network of "
                "convolutions with BatchNorm, such as resnet8, resnet18 or mobilenetv2_100."
            )
        self._positions = {name: count / len(example) for name, count in watch.positions.items()}
        self._full_work = self._work({one.name: one.full for one in self.bundles})
        self._slots_of: dict[str, list[tuple[str, Slot]]] = {}
        for one in self.bundles:
            for slot in one.slots:
                self._slots_of.setdefault(slot.tensor, []).append((one.name, slot))
        self._check(example)

    # -- what there is -----------------------------------------------------------------------------------------------

    @property
    def widths(self) -> dict[str, int]:
        """How many channels each bundle has now."""
        return {one.name: self._width(one) for one in self.bundles}

    @property
    def kept(self) -> float:
        """The share of the channels that are there."""
        return sum(self.widths.values()) / sum(one.full for one in self.bundles)

    @property
    def share(self) -> float:
        """What an example costs now, as a share of what it does in the whole model: by multiplications."""
        return self.share_with(self.widths)

    def share_with(self, widths: Mapping[str, int]) -> float:
        """What an example would cost with these widths."""
        return self._work(widths) / self._full_work

    @torch.no_grad()
    def lasso(self) -> float:
        """The sum over all channels of the norms of the weights that make one, and of those that read it."""
        return math.fsum(float(_norms(self._tensor(slot.tensor), slot).sum()) for slot in self._lassoed())

    @torch.no_grad()
    def shrink(self, coefficient: float, optimizer: torch.optim.Optimizer) -> None:
        """Add to a step of the optimiser that of the group lasso: bring the norm of every group of weights nearer to 0.

        Its proximal step, as it is exact: a group that would cross zero stays there, at any learning rate and whatever
        the optimiser makes of gradients. As far as momentum would take it. Weights that the step has left alone, as a
        form freezes them or skips their block, are left alone here too.
        """
        rates = {
            id(parameter): group["lr"] / (1.0 - group.get("momentum", 0.0))
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for slot in self._lassoed():
            weight = self._tensor(slot.tensor)
            if weight.grad is not None and id(weight) in rates:
                norms = _norms(weight, slot, keepdim=True).clamp_(min=1e-30)
                _by_channel(weight, slot).mul_((1.0 - coefficient * rates[id(weight)] / norms).clamp_(min=0.0))

    @torch.no_grad()
    def largest(self) -> dict[str, Tensor]:
        """By bundle and channel, the largest absolute value of the weights that make or read it.

        The largest over all layers of a shared path, so a channel is small only where all of them have it small.
        """
        found = dict[str, Tensor]()
        for one in self.bundles:
            weights = [(self._tensor(slot.tensor), slot) for slot in one.slots if slot.role != "carries"]
            found[one.name] = torch.stack([_norms(weight, slot, math.inf) for weight, slot in weights]).amax(0)
        return found

    def _lassoed(self) -> Iterator[Slot]:
        return (slot for one in self.bundles for slot in one.slots if slot.role != "carries")

    # -- changing it -------------------------------------------------------------------------------------------------

    def remove_below(self, threshold: float, optimizer: torch.optim.Optimizer | None = None) -> int:
        """Remove the channels whose every weight is below the threshold, but for the last ones; how many."""
        keep, removed = dict[str, Tensor](), 0
        for one, values in zip(self.bundles, self.largest().values(), strict=True):
            least = min(one.least, len(values))
            alive = values >= threshold
            alive[values.topk(least).indices] = True
            keep[one.name] = alive.nonzero().squeeze(1)
            removed += len(values) - len(keep[one.name])
        if removed:
            self._replace(lambda tensor, slots, _: _selected(tensor, slots, keep), optimizer)
        return removed

    def grow(
        self, widths: Mapping[str, int], rng: torch.Generator, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Widen bundles with new channels that nothing reads yet, so that the model still answers the same."""
        more = {name: max(0, widths[name] - now) for name, now in self.widths.items()}

        def grown(tensor: Tensor, slots: Sequence[tuple[str, Slot]], is_state: bool) -> Tensor:
            scale = float(tensor.detach().float().square().mean().sqrt()) if slots else 0.0
            for name, slot in slots:
                shape = list(tensor.shape)
                shape[slot.dim] = more[name] * slot.inner
                value = 1.0 if slot.tensor.endswith(("running_var", ".weight")) and tensor.ndim == 1 else 0.0
                new = torch.full(shape, 0.0 if is_state else value)
                if not is_state and tensor.ndim > 1 and slot.role != "reads":
                    new.normal_(0.0, scale or 0.01, generator=rng)
                tensor = torch.cat([tensor, new.to(tensor)], slot.dim)
            return tensor

        self._replace(grown, optimizer)

    def resize(self, widths: Mapping[str, int], optimizer: torch.optim.Optimizer | None = None) -> None:
        """Give every bundle so many channels, its first ones or zeros behind them, for weights that are read next."""

        def resized(tensor: Tensor, slots: Sequence[tuple[str, Slot]], is_state: bool) -> Tensor:
            for name, slot in slots:
                wanted = widths[name] * slot.inner
                lacking = list(tensor.shape)
                lacking[slot.dim] = max(0, wanted - tensor.shape[slot.dim])
                tensor = torch.cat([tensor.narrow(slot.dim, 0, min(wanted, tensor.shape[slot.dim])),
                                    tensor.new_zeros(lacking)], slot.dim)  # fmt: skip
            return tensor

        self._replace(resized, optimizer)

    def resize_like(self, weights: Mapping[str, Tensor]) -> None:
        """Give every bundle as many channels as it has in these weights; which others differ shows when they load."""
        widths = dict[str, int]()
        for one in self.bundles:
            slot = one.slots[0]
            tensor = weights.get(slot.tensor)
            fits = tensor is not None and tensor.ndim == self._tensor(slot.tensor).ndim
            widths[one.name] = tensor.shape[slot.dim] // slot.inner if fits and tensor is not None else one.full
        self.resize(widths)

    def _replace(
        self,
        change: Callable[[Tensor, Sequence[tuple[str, Slot]], bool], Tensor],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        """Put changed tensors in the place of all that hold channels, those of the optimiser's state among them.

        New parameters rather than new values in the old: a graph that is still held, as by a loop's last loss, would
        expect gradients of the old shape.
        """
        # By the model, not by the tensor: a 1×1 kernel does not show its layout, and a resumed run must choose alike.
        last = any(_is_channels_last(p) for p in self._model.parameters())
        for name, slots in self._slots_of.items():

            def changed(tensor: Tensor, is_state: bool, slots: list[tuple[str, Slot]] = slots) -> Tensor:
                return _laid_out(change(tensor.detach(), slots, is_state), last)

            old = self._tensor(name)
            new = changed(old, False)
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
                if optimizer is not None:
                    _swap(optimizer, old, new, changed)
            self._put(name, new)

    def _put(self, name: str, tensor: Tensor) -> None:
        for module, own in self._owners[name]:
            setattr(module, own, tensor)
            _announce(module, is_depthwise=name in self._depthwise)

    def _check(self, example: Tensor) -> None:
        """Make sure, on half of the channels, that removing some that nothing reads changes nothing."""
        before = {name: self._tensor(name) for name in self._slots_of}
        half = {one.name: max(one.least, one.full // 2) for one in self.bundles}

        def unread(tensor: Tensor, slots: Sequence[tuple[str, Slot]], is_state: bool) -> Tensor:
            tensor = tensor.clone()
            for name, slot in slots:
                if slot.role == "reads":
                    start = half[name] * slot.inner
                    tensor.narrow(slot.dim, start, tensor.shape[slot.dim] - start).zero_()
            return tensor

        try:
            with trial(self._model):
                self._replace(unread, None)
                whole = self._model(example)
                self.resize(half)
                smaller = self._model(example)
            pairs = zip(_tensors(whole), _tensors(smaller), strict=True)
            same = all(a.shape == b.shape and torch.allclose(a, b, 1e-2, 1e-3) for a, b in pairs)
            why = "it answers differently without channels that nothing reads"
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            same, why = False, str(error).splitlines()[0]
        finally:
            for name, tensor in before.items():
                self._put(name, tensor)
        if not same:
            raise LeanError(
                f"{type(self._model).__name__} cannot be run with fewer channels ({why}); choose a network of "
                "convolutions whose forward has no widths written into it, such as resnet18."
            )

    # -- looking things up -------------------------------------------------------------------------------------------

    def _tensor(self, name: str) -> Tensor:
        module, own = self._owners[name][0]
        tensor: Tensor = getattr(module, own)
        return tensor

    def _width(self, one: Bundle) -> int:
        slot = one.slots[0]
        return self._tensor(slot.tensor).shape[slot.dim] // slot.inner

    def _work(self, widths: Mapping[str, int]) -> float:
        """Multiplications of convolutions and linear layers, of one example."""
        sizes = {name: list(self._tensor(name).shape) for name in self._positions}
        for one in self.bundles:
            for slot in one.slots:
                if slot.tensor in sizes:
                    sizes[slot.tensor][slot.dim] = widths[one.name] * slot.inner
        return math.fsum(count * math.prod(sizes[name]) for name, count in self._positions.items())

    def _crashes_with_few(self, name: str, watch: Watch) -> bool:
        """Whether a weight is that of a strided 1×1 convolution as torch has it; one of another class may know."""
        return name in watch.strided and all(type(module) is nn.Conv2d for module, _ in self._owners[name])


# -- tensors by channel ----------------------------------------------------------------------------------------------


def _by_channel(tensor: Tensor, slot: Slot) -> Tensor:
    """A view in which the slot's dimension counts channels, and what one has side by side is the dimension after it."""
    if slot.inner == 1:
        return tensor
    return tensor.view([*tensor.shape[: slot.dim], -1, slot.inner, *tensor.shape[slot.dim + 1 :]])


def _norms(tensor: Tensor, slot: Slot, order: float = 2, keepdim: bool = False) -> Tensor:
    """The norm of every channel's entries."""
    view = _by_channel(tensor, slot)
    others = [dim for dim in range(view.ndim) if dim != slot.dim]
    norms: Tensor = torch.linalg.vector_norm(view, order, dim=others, keepdim=keepdim)
    return norms


def _selected(tensor: Tensor, slots: Iterable[tuple[str, Slot]], keep: Mapping[str, Tensor]) -> Tensor:
    for name, slot in slots:
        index = keep[name].to(tensor.device)
        inside = torch.arange(slot.inner, device=tensor.device)
        tensor = tensor.index_select(slot.dim, (index[:, None] * slot.inner + inside).reshape(-1))
    return tensor


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def _laid_out(tensor: Tensor, channels_last: bool) -> Tensor:
    """A copy whose strides follow from its shape alone."""
    layout = torch.channels_last if channels_last and tensor.ndim == 4 else torch.contiguous_format
    return torch.empty_like(tensor, memory_format=layout).copy_(tensor)


def _swap(
    optimizer: torch.optim.Optimizer, old: nn.Parameter, new: Tensor, changed: Callable[[Tensor, bool], Tensor]
) -> None:
    """Let an optimiser go on with another parameter, whose state has lost or gained the same channels."""
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    if old in optimizer.state:
        state = optimizer.state.pop(old)
        optimizer.state[new] = {
            key: changed(value, True) if isinstance(value, Tensor) and value.shape == old.shape else value
            for key, value in state.items()
        }


def _announce(module: nn.Module, is_depthwise: bool) -> None:
    """Bring the sizes that a layer keeps beside its weights up to date."""
    if isinstance(module, nn.modules.conv._ConvNd):
        if is_depthwise:
            module.groups = module.weight.shape[0]
        module.out_channels = module.weight.shape[0]
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        held = [one for one in (module.weight, module.running_mean) if isinstance(one, Tensor)]
        module.num_features = len(held[0]) if held else module.num_features


def _tensors(output: Any) -> list[Tensor]:
    leaves = tree_leaves(getattr(output, "logits", output))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
