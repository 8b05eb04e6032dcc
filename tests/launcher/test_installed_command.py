"""The installed command `amp-launcher`, as `pip install` makes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("amp-launcher")
MODULES = (
    *("json", "typing", "site", "sitecustomize", "hydra", "hydra_plugins/one", "omegaconf", "yaml", "rich", "submitit"),
    *("launcher", "amp_launcher", "containers", "recipes", "torch", "numpy"),
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules by the names of those that the launcher imports; each says that it ran."""
    folder = tmp_path / "hostile"
    for name in MODULES:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(tmp_path / 'witness')!r}, 'a').write({name + ' '!r})\n")
    (folder / "train.py").write_text("import torch\n")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["plan", "train.py", "amp=o0", "train.bare=true", "require_proof=false", "device=cpu"],
        ["recipe=simplenet", "train.width=64", "amp=o0", "steps=1", "batch=8", "device=cpu"],
        ["export", "none"],
    ],
    ids=lambda words: words[0],
)
def test_it_imports_nothing_of_the_current_folder(hostile: Path, tmp_path: Path, words: list[str]) -> None:
    """As `python -m launcher` does, which puts that folder first."""
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run([COMMAND, *words], cwd=hostile, env=environment, capture_output=True, text=True)
    assert done.returncode == (2 if "none" in words else 0), done.stdout + done.stderr
    assert not (tmp_path / "witness").exists(), (tmp_path / "witness").read_text()
