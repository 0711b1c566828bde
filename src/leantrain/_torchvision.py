"""Makes `import torchvision` work where its wheel was built for CUDA and torch was not.

Such a torchvision cannot load its `_C` extension, yet on import describes operators that only the extension declares,
and fails: `operator torchvision::nms does not exist`. timm, torchmetrics and others that import it fail with it.
Models, transforms and data sets need none of these operators, so it is enough to declare them.
"""

from __future__ import annotations

import importlib.util
import mmap
import sys
from pathlib import Path
from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[Any] = []  # a Library takes its declarations back when it is collected


def prepare() -> None:
    """Called right before torchvision is first imported once leantrain is. Does nothing where nothing is wrong.

    Only the schemas are declared, no kernels: calling `torchvision.ops.nms` still says that it cannot run.
    """
    if _declared or "torchvision" in sys.modules or torch.version.cuda or not _wants_cuda():
        return
    if hasattr(torch.ops.torchvision, "nms"):  # somebody else has been here
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)
    _declared.append(library)


def _wants_cuda() -> bool:
    """Whether the installed torchvision's extension links against CUDA torch; found without importing it."""
    spec = importlib.util.find_spec("torchvision")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any(_mentions(file, b"libtorch_cuda.so") for folder in folders for file in Path(folder).glob("_C*.so"))


def _mentions(file: Path, word: bytes) -> bool:
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(word) >= 0
