"""torchvision can be imported after `prepare()`, whatever torch it was built for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leantrain import _torchvision

MISMATCHED = torch.version.cuda is None and _torchvision._wants_cuda()


def run(code: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since an import happens once."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


NMS = "torchvision.ops.nms(torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 1]]), torch.tensor([0.5, 0.9]), 0.5).tolist()"


@pytest.fixture(scope="module")
def matched() -> bool:
    """Whether torchvision works here without any help, which is found by trying and not by what `prepare` believes."""
    return run(f"import torch, torchvision; assert {NMS} == [1]").returncode == 0


def test_prepare_declares_something_where_torchvision_does_not_work_and_nothing_where_it_does(matched: bool) -> None:
    done = run(
        "import leantrain\n"
        "from leantrain import _torchvision\n"
        "_torchvision.prepare()\n"
        "print(len(_torchvision._declared))\n"
        "import torchvision\n"
        "print(torchvision.models.__name__)"
    )
    assert done.returncode == 0, done.stderr
    declared, imported = done.stdout.split()
    assert declared == ("0" if matched else "1")
    assert imported == "torchvision.models"


def test_after_importing_leantrain_timm_and_torchvision_can_be_imported() -> None:
    done = run(
        "import sys, leantrain\n"
        "assert 'torch' not in sys.modules, 'at no cost'\n"
        "import timm, torchvision\n"
        "print(torchvision.transforms.__name__, sum('BeforeImport' in type(one).__name__ for one in sys.meta_path))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torchvision.transforms", "0"]


def test_operators_that_work_still_work_after_prepare(matched: bool) -> None:
    if not matched:
        pytest.skip("torchvision's operators do not work here with or without it")
    done = run(f"from leantrain import _torchvision\n_torchvision.prepare()\nimport torch, torchvision\nprint({NMS})")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1]"


def test_timm_and_torchvision_import_after_prepare_and_twice_does_no_harm() -> None:
    done = run(
        "from leantrain import _torchvision as t\n"
        "t.prepare(); t.prepare()\n"
        "import torchvision.models, torchvision.datasets, torchvision.transforms.v2, timm\n"
        "t.prepare()\n"
        "print(sum(p.numel() for p in torchvision.models.squeezenet1_1().parameters()))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1235496"


@pytest.mark.skipif(not MISMATCHED, reason="torch and torchvision were built for each other here")
def test_an_operator_without_its_extension_still_says_that_it_cannot_run() -> None:
    done = run(
        "from leantrain import _torchvision\n"
        "_torchvision.prepare()\n"
        "import torch, torchvision\n"
        "torchvision.ops.nms(torch.rand(2, 4), torch.rand(2), 0.5)"
    )
    assert done.returncode == 1
    assert "Couldn't load custom C++ ops" in done.stderr


@pytest.mark.skipif(not MISMATCHED, reason="torch and torchvision were built for each other here")
def test_somebody_elses_cure_is_left_alone() -> None:
    done = run(
        "import torch\n"
        "library = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "library.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "from leantrain import _torchvision\n"
        "_torchvision.prepare()\n"
        "import torchvision\n"
        "print(len(_torchvision._declared))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0"


def test_nothing_is_declared_where_torch_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_not_imported(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    _torchvision.prepare()
    assert _torchvision._declared == []


def test_nothing_is_declared_where_torchvision_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_not_imported(monkeypatch)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _torchvision.prepare()
    assert _torchvision._declared == []


def test_nothing_is_declared_for_a_torchvision_built_without_cuda(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_not_imported(monkeypatch)
    install(tmp_path, b"\x7fELF libtorch_cpu.so libc10.so", monkeypatch)
    _torchvision.prepare()
    assert _torchvision._declared == []


@pytest.mark.parametrize("file", ["_C.so", "_C.cpython-311-x86_64-linux-gnu.so"])
def test_an_extension_that_links_against_cuda_is_recognised_unimported(
    file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend_not_imported(monkeypatch)
    install(tmp_path, b"\x7fELF libtorch_cpu.so libtorch_cuda.so", monkeypatch, file)
    assert _torchvision._wants_cuda()
    assert "torchvision" not in sys.modules


def pretend_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(_torchvision, "_declared", [])


def install(folder: Path, extension: bytes, monkeypatch: pytest.MonkeyPatch, file: str = "_C.so") -> None:
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / file).write_bytes(extension)
    monkeypatch.syspath_prepend(str(folder))
