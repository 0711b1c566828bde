"""Weights in files: to start from or to keep, checked by a checksum, and read without ever running code from them."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from leantrain.errors import LeanError
from leantrain.models.small import reason


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a state dict, without ever running code from the file. A head for other classes is left as initialised."""
    found, wanted = _read_weights(file), model.state_dict()
    differing = {key for key in found.keys() & wanted.keys() if found[key].shape != wanted[key].shape}
    fresh = {key for key in differing if key.rpartition(".")[0] in head_names(model)}
    fresh |= {key for key in differing & {"conv1.weight"} if found[key].shape[:2] == wanted[key].shape[:2]}  # the stem
    missing = {key for key in wanted.keys() - found.keys() if not key.endswith("num_batches_tracked")}
    for label, keys in (
        ("lacks", missing),
        ("has unknown", found.keys() - wanted.keys()),
        ("has another shape of", differing - fresh),
    ):
        if keys:
            some = ", ".join(sorted(keys)[:3]) + (", …" if len(keys) > 3 else "")
            raise LeanError(
                f"weights file {file} {label} {len(keys)} of the model's {len(wanted)} tensors ({some}); "
                "give the --model, --width and image size it was saved from."
            )
    if fresh:
        warnings.warn(
            f"{file}: {', '.join(sorted(fresh))} have another shape than this model's and start from scratch",
            stacklevel=3,
        )
    model.load_state_dict({key: value for key, value in found.items() if key not in fresh}, strict=False)


def head_names(model: nn.Module) -> set[str]:
    """The modules whose shape depends on the number of classes."""
    config = getattr(model, "pretrained_cfg", None)
    declared = config.get("classifier") if isinstance(config, Mapping) else None
    if declared:
        return {declared} if isinstance(declared, str) else set(declared)
    return {[name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))][-1]}


def _read_weights(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise LeanError(f"there is no weights file {file}; check --weights.")
    try:
        if file.suffix == ".safetensors":
            found: Any = read_safetensors(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise LeanError(
            f"weights file {file} cannot be read as plain tensors ({reason(error)}); "
            "save the model's state_dict() with torch.save or safetensors."
        ) from error
    for key in ("model", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise LeanError(f"weights file {file} holds no state dict; save the model's state_dict() with torch.save.")
    return dict(found)


# The model that a run saves: a .safetensors file that any program reads, with a checksum in its metadata.

_KEY = "leantrain"


def safetensors_bytes(state: Mapping[str, Tensor], model: str) -> bytes:
    """The content of a .safetensors file with a model's tensors and their checksum."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    about = json.dumps({"model": model, "sha256": _checksum(tensors)})
    # One entry: safetensors writes several in random order, and equal runs should give equal files.
    return save(tensors, metadata={_KEY: about})


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, compared with their checksum where leantrain wrote one.

    Raises:
        ValueError: the checksum is wrong.
    """
    with safe_open(file, framework="pt") as content:
        about = (content.metadata() or {}).get(_KEY)
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - it is no mapping
    if about is not None and json.loads(about).get("sha256") != _checksum(tensors):
        raise ValueError("its checksum is wrong: it was damaged after it was written")
    return tensors


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
