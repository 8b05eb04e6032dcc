"""What is published: the archive of sources, the wheel that is built of it, and the version of both."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import uuid
import zipfile
from pathlib import Path

import pytest

import launcher
from tests.launcher.ssh import ways
from tests.testbed.facts import Testbed

ROOT = Path(__file__).parents[2]
PACKAGES = {"launcher", "amp_launcher", "hydra_plugins"}
APACHE = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of https://www.apache.org/licenses/LICENSE-2.0.txt."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this tree's sources."""
    folder = tmp_path_factory.mktemp("sources")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, check=True, timeout=120, cwd=ROOT)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel of these sources installs, as `python -m build` makes it."""
    folder = tmp_path_factory.mktemp("installed")
    build = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={folder}/built"]
    subprocess.run([sys.executable, "-m", "pip", *build, str(sources)], check=True, timeout=120)
    (wheel,) = (folder / "built").iterdir()
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_archive_has_what_a_wheel_is_built_of_and_no_more(sources: Path) -> None:
    with tarfile.open(sources) as archive:
        names = [member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()]
        assert all(member.isfile() or member.isdir() for member in archive.getmembers()), "links are lost on the way"
    assert len(names) == len(set(names))
    files = {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, "conf", *files}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".sif"))]


def test_the_wheel_has_every_file_of_its_packages_that_git_has(installed: Path) -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no checkout")
    places = {"containers": "launcher/containers", "recipes": "amp_launcher/recipes", "conf": "launcher/conf"}
    wanted = set()
    for name in tracked.stdout.splitlines():
        top, _, rest = name.partition("/")
        if rest and not (ROOT / name).is_symlink() and top in (*PACKAGES, *places):
            wanted.add(f"{places.get(top, top)}/{rest}")
    assert {path for path in wanted if not (installed / path).is_file()} == set()


def test_the_version_is_that_of_the_newest_release_in_the_changelog(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    version = re.findall(r"^Version: (.*)$", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert version == [launcher.__version__] == released[:1]


def test_the_wheel_has_the_license_that_it_names(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    assert "\nLicense-Expression: Apache-2.0\n" in text and "\nLicense-File: LICENSE\n" in text
    license = metadata.parent / "licenses" / "LICENSE"
    assert license.read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert hashlib.sha256(license.read_bytes()).hexdigest() == APACHE


def test_no_extra_is_empty(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    for extra in re.findall(r"^Provides-Extra: (.*)$", text, re.MULTILINE):
        assert f"extra == '{extra}'" in text, extra


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


@pytest.fixture
def laptop(installed: Path, tmp_path: Path) -> Path:
    """A Python that has the wheel and what it depends on, and no framework."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "laptop")], check=True)
    (site,) = (tmp_path / "laptop").glob("lib/python3*/site-packages")
    no = re.compile(r"torch|tensorflow|tf_keras|paddle|keras|amp_launcher|.*\.pth$")  # which is an editable install's
    others = [path for path in Path(sysconfig.get_path("purelib")).iterdir() if not no.match(path.name)]
    for name, path in {path.name: path for path in (*others, *installed.iterdir())}.items():
        (site / name).symlink_to(path)
    return tmp_path / "laptop/bin/python"


@pytest.mark.testbed
def test_without_a_framework_and_a_checkout_a_wheel_submits_elsewhere(
    laptop: Path, testbed: Testbed, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "empty").mkdir()
    environment = {**testbed.slurm_env({"HOME": str(tmp_path), "LAUNCHER_ASK_EVERY": "0.5"}), "PYTHONPATH": ""}
    job = ["recipe=simplenet", "amp=o1", "batch=16", "steps=2", "train.width=32", "device=cpu", "telemetry.every=0"]

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        command = [laptop, "-m", "launcher", *job, *words]
        return subprocess.run(command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True)

    here = typed(f"run_root={tmp_path}/runs")
    assert here.returncode == 2 and "a job on another host (cluster=ssh" in here.stderr
    assert not (tmp_path / "runs").exists()
    far = Path(testbed.shared, f"wheel-{uuid.uuid4().hex[:8]}")
    far.mkdir()
    os.chown(far, testbed.user.uid, testbed.user.gid)
    request.addfinalizer(lambda: shutil.rmtree(far))
    where = ["cluster=ssh", "cluster.host=box", f"cluster.ssh_config={ways.configuration(tmp_path, testbed)}"]
    where += [f"run_root={far}/runs"]
    done = typed(*where, f"python={testbed.python}", "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved: bfloat16" in done.stdout
