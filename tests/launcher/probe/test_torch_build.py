"""What torch was built for, as it tells itself: asked once, and again when another one lies there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.probe import torch_build
from launcher.probe.facts import TorchBuild

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def a_python(folder: Path, cuda: str, flags: str) -> str:
    """One with a package that answers as torch does, and notes that it was imported."""
    package = folder / "torch"
    package.mkdir(exist_ok=True)
    (package / "version.py").write_text(f"cuda = {cuda!r}\n")
    noting = f"open({str(folder / 'imported')!r}, 'a').write('x')\n"
    (package / "__init__.py").write_text(f"from torch import _C, version\n{noting}print('a greeting')\n")
    (package / "_C.py").write_text(f"def _cuda_getArchFlags(): return {flags!r}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONDONTWRITEBYTECODE=1 PYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_the_torch_of_these_tests_tells_its_cuda() -> None:
    torch = pytest.importorskip("torch")
    build = torch_build.read(sys.executable)
    assert build is not None
    assert build.cuda == (torch.version.cuda or "")


def test_torch_is_imported_once_for_that_until_another_one_lies_there(tmp_path: Path) -> None:
    python = a_python(tmp_path, "13.0", "sm_75 sm_80 sm_90a compute_120")
    expected = TorchBuild(cuda="13.0", architectures=("sm_75", "sm_80", "sm_90a", "compute_120"))
    assert [torch_build.read(python) for _ in range(2)] == [expected, expected]
    assert (tmp_path / "imported").read_text() == "x"
    (tmp_path / "torch" / "version.py").unlink()
    assert torch_build.read(a_python(tmp_path, "12.6", "sm_70")) == TorchBuild(cuda="12.6", architectures=("sm_70",))


@pytest.mark.parametrize(("cuda", "flags"), [("$(id)", "sm_80"), (13, "sm_80")])
def test_an_answer_that_is_none_is_not_believed(tmp_path: Path, cuda: object, flags: str) -> None:
    python = a_python(tmp_path, "", flags)
    (tmp_path / "torch" / "version.py").write_text(f"cuda = {cuda!r}\n")
    assert torch_build.read(python) is None


def test_a_python_without_torch_has_no_build(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    assert torch_build.read(str(python)) is None
    assert torch_build.read("/nowhere/python") is None
