"""Trial: a model run on made-up images, to see what it does, which leaves no trace in it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.wrappers import inner


class Trial:
    """Runs a model on made-up images and leaves no trace: mode, buffers, gradients and generators stay as they were.

    The images are smooth noise, so that two of them differ in every map. What would hide that difference in a model
    not trained yet is stood in for: weights that are all zero, as some heads and the last norms of residual blocks
    start, and BatchNorm statistics.
    """

    def __init__(self, model: nn.Module, example: Tensor, count: int = 2) -> None:
        self.model = model
        generator = torch.Generator().manual_seed(0)
        _, channels, height, width = example.shape
        coarse = torch.randn(count, channels, 3, 3, generator=generator)
        fine = torch.randn(count, channels, height, width, generator=generator)
        images = F.interpolate(coarse, (height, width), mode="bilinear") + 0.5 * fine
        like = next((p for p in model.parameters() if p.is_floating_point()), example)  # Fabric casts on the way in
        self.images = images.to(like.device, like.dtype)
        self._stand_ins: dict[str, Tensor] = {
            name: (0.02 * torch.randn(value.shape, generator=generator)).to(value.device, value.dtype)
            for name, value in model.named_parameters()
            if value.ndim > 1 and value.is_floating_point() and not value.any()
        }
        for name, module in model.named_modules():
            weight = getattr(module, "weight", None)
            if "norm" in type(module).__name__.lower() and isinstance(weight, nn.Parameter) and not weight.any():
                self._stand_ins[join(name, "weight")] = torch.ones_like(weight)
        self._open = contextlib.ExitStack()
        self.plain: Any = None  # the model's own output in eval mode
        self.trained: Any = None  # and in train mode

    def __enter__(self) -> Trial:
        device = self.images.device
        modes = {module: module.training for module in self.model.modules()}
        self._open.callback(_set_modes, self.model, modes)
        self._open.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        self._open.enter_context(torch.no_grad())
        self._open.enter_context(torch.autocast(device.type, enabled=False))
        if any(getattr(module, "_compiled_call_impl", None) is not None for module in modes):
            self._open.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            self._calibrate()
            self.model.eval()
            self.plain = self.run(self.images)
        except Exception as error:
            self._open.close()
            lines = str(error).strip().splitlines()
            raise LeanError(
                f"{type(self.model).__name__} does not take inputs of shape {tuple(self.images.shape)} "
                f"({lines[0] if lines else type(error).__name__}); "
                "give an example batch as in training"
            ) from error
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def run(self, images: Tensor) -> Any:
        buffers = {name: self._stand_ins.get(name, buffer).clone() for name, buffer in self.model.named_buffers()}
        output = torch.func.functional_call(self.model, {**self._stand_ins, **buffers}, (images,))
        return getattr(output, "logits", output)  # Hugging Face's models answer with an object

    def _calibrate(self) -> None:
        """Give BatchNorm the statistics of the images; from zero, one step moves them `momentum` of the way there."""
        norms = {
            f"{name}.{kind}": module.momentum or 1.0
            for name, module in self.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
            for kind in ("running_mean", "running_var")
        }
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        for name in buffers:
            if name in norms or name.endswith("num_batches_tracked"):
                buffers[name].zero_()
        self.model.train()
        trained = torch.func.functional_call(self.model, {**self._stand_ins, **buffers}, (self.images,))
        self.trained = getattr(trained, "logits", trained)
        for name, momentum in norms.items():
            found = buffers[name] / momentum
            if found.isfinite().all() and found.any():
                self._stand_ins[name] = found

    def rows_of(self, module: nn.Module) -> int:
        """How many tokens a module is given."""
        lengths: list[int] = []
        handle = module.register_forward_pre_hook(lambda module, inputs: lengths.append(inputs[0].shape[1]))
        try:
            self.run(self.images)
        finally:
            handle.remove()
        return lengths[0]


def _set_modes(model: nn.Module, modes: dict[nn.Module, bool]) -> None:
    model.train()  # makes models forget what they cached in eval mode, such as LeViT its position biases
    for module, training in modes.items():
        module.training = training


def one_tensor(trial: Trial) -> None:
    """Refuse a model that gives anything but (B, classes), in eval or in train mode."""
    for output in (trial.plain, trial.trained):
        if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != len(trial.images):
            what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise LeanError(
                f"{type(trial.model).__name__} gives {what} for {len(trial.images)} images, but split propagation "
                "needs one tensor (B, classes); turn auxiliary outputs off or use split=false"
            )


def checked(model: nn.Module, example: Tensor) -> nn.Module:
    """The model inside its wrappers."""
    if not isinstance(example, Tensor) or example.ndim != 4 or not example.is_floating_point() or not len(example):
        what = f"{tuple(example.shape)} {example.dtype}" if isinstance(example, Tensor) else type(example).__name__
        raise LeanError(f"split propagation needs an example batch of floats (n, C, H, W), not {what}")
    while True:
        if isinstance(model, nn.DataParallel):
            raise LeanError(
                "split propagation does not work in nn.DataParallel, which copies the model for every step; "
                "use DistributedDataParallel or split=false"
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise LeanError("split propagation cannot act inside a TorchScript model; give the nn.Module it came from")
        inside = inner(model)
        if inside is None:
            return model
        model = inside


def join(*names: str) -> str:
    return ".".join(name for name in names if name)
