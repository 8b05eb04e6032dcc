"""The wheel: what it installs, and that nothing else of these names is in its way."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"launcher", "amp_launcher", "hydra_plugins"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel of this tree installs, among packages of the names of our folders."""
    folder = tmp_path_factory.mktemp("installed")
    build = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={folder}/built"]
    subprocess.run([sys.executable, "-m", "pip", *build, str(ROOT)], check=True, timeout=120)
    (wheel,) = (folder / "built").iterdir()
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_a_wheel_has_its_packages_and_in_them_what_lies_beside_them_in_a_checkout(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == PACKAGES
    for name in (
        "launcher/conf/config.yaml",
        "launcher/containers/ngc.json",
        "amp_launcher/recipes/mnist/train_torch.py",
        "amp_launcher/recipes/data/images.py",
        "hydra_plugins/amp_launcher_plugin/launchers.py",
    ):
        assert (installed / name).is_file(), name


def test_a_wheel_plans_and_trains_among_folders_and_packages_of_these_names(installed: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for place in (installed, project):
        for name in ("recipes", "containers", "conf"):
            (place / name).mkdir(parents=True)
            (place / name / "__init__.py").write_text(f"raise ImportError('the {name} of another project')\n")
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(installed)}
    words = ["recipe=simplenet", "amp=o1", "batch=16", "steps=2", "train.width=32", "device=cpu", "telemetry.every=0"]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words], cwd=project, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved: bfloat16" in done.stdout
