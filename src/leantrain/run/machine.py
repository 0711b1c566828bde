"""The machine: which device and precision suit it, what it is, and how much memory a run took."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leantrain.errors import LeanError


def choose_device(name: str) -> torch.device:
    """The device of that name, or the best there is for `auto`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise LeanError(f"--device is '{name}', but must be auto, cpu, cuda, cuda:N or mps.") from None
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(device.type, False):
        raise LeanError(f"--device is '{name}', but this machine has no such device; use --device cpu or auto.")
    return device


def choose_precision(name: str, device: torch.device, make: Callable[[], nn.Module] | None = None) -> str:
    """For `auto`, bf16 where the hardware computes in it and it is faster than fp32.

    A CPU without bf16 would emulate it, and one with AVX-512 alone is slow in it at some networks; how those fare on
    the tile units of others was not measured.

    Args:
        make: The model, called only where the choice hangs on its layers; without it the hardware alone decides.
    """
    if name == "fp16" and device.type != "cuda":
        raise LeanError(f"--precision is 'fp16', which needs CUDA and not {device.type}; use bf16 or fp32.")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type != "cpu" or not _cpu_has_bf16():
        return "fp32"
    slow = make is not None and not torch.cpu._is_amx_tile_supported() and slow_in_bf16(make())
    return "fp32" if slow else "bf16"


def precision_warning(precision: str, device: torch.device) -> str | None:
    """What to know of a precision that was asked for on this machine; None where it suits it."""
    if precision != "bf16" or device.type != "cpu" or _cpu_has_bf16():
        return None
    return (
        f"--precision is bf16, which this CPU ({_cpu_name()}) only emulates; a step took 12 times as long as in fp32 "
        "(resnet8, batch 128, AVX2): use --precision fp32 or auto."
    )


def slow_in_bf16(model: nn.Module) -> bool:
    """Whether it is of the family of MobileNets and EfficientNets: depthwise convolutions, BatchNorm between them.

    On a CPU with AVX-512 these took up to twice as long in bf16 as in fp32, where ConvNeXts, without BatchNorm, took
    less: benchmarks/precision.py.
    """
    layers = tuple(model.modules())
    depthwise = any(isinstance(layer, nn.Conv2d) and 1 < layer.in_channels == layer.groups for layer in layers)
    return depthwise and any(isinstance(layer, nn.BatchNorm2d) for layer in layers)


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was given, so that a clock may be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _cpu_has_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def describe(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, so that a number can be traced to what made it."""
    packages = ("leantrain", "torch", "torchvision", "timm", "numpy")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "hardware": {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "cpu": _cpu_name(),
            "threads": torch.get_num_threads(),
            "system": platform.system(),
        },
    }


def peak_memory_mb(device: torch.device) -> float:
    """The most memory this process held: on the GPU where there is one, else resident in the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:  # not getrusage: on Linux its peak is inherited from the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**10
    except (OSError, StopIteration):
        import resource  # not there on Windows

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
