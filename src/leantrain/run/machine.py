"""The machine: which device and precision suit it, what it is, and how much memory a run took."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from leantrain.errors import LeanError

FABRIC_PRECISION = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


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


def choose_precision(name: str, device: torch.device) -> str:
    """For `auto`, bf16 where the hardware computes in it; a CPU without would emulate it, slower than fp32."""
    if name == "fp16" and device.type != "cuda":
        raise LeanError(f"--precision is 'fp16', which needs CUDA and not {device.type}; use bf16 or fp32.")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if device.type == "cpu" and _cpu_has_bf16() else "fp32"


def precision_warning(precision: str, device: torch.device) -> str | None:
    """What to know of a precision that was asked for on this machine; None where it suits it."""
    if precision != "bf16" or device.type != "cpu" or _cpu_has_bf16():
        return None
    return (
        f"--precision is bf16, which this CPU ({_cpu_name()}) only emulates; a step took 12 times as long as in fp32 "
        "(resnet8, batch 128, AVX2): use --precision fp32 or auto."
    )


def _cpu_has_bf16() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def describe(device: torch.device) -> dict[str, Any]:
    """Versions and hardware, so that a number can be traced to what made it."""
    packages = ("leantrain", "torch", "torchvision", "timm", "lightning-fabric", "numpy")
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
