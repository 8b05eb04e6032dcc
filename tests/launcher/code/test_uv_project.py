"""The project of a script, as the real uv locks it, and what of it goes along with the code."""

from __future__ import annotations

import pytest

from launcher.code import uv_project
from launcher.errors import UsageError
from tests.launcher import uv_projects


def test_the_nearest_lock_is_found_with_all_that_uv_reads(tmp_path):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    (folder / ".python-version").write_text("3.11\n")
    (folder / "jobs").mkdir()
    found = uv_project.find(folder / "jobs", "beside jobs/train.py")
    assert found.lock == folder / "uv.lock"
    assert found.packages["tinylib"] == "1.0"
    assert found.member == "uv_project"
    names = {".python-version", "pyproject.toml", "uv.lock", "lib/pyproject.toml", "lib/backend.py", "lib/tinylib.py"}
    assert found.files.keys() == {f"uv_project/{name}" for name in names}


def test_a_package_beside_the_project_keeps_its_place(tmp_path):
    found = uv_project.find(uv_projects.make(tmp_path, tmp_path / "proj", "../lib"), "here")
    assert found.member == "uv_project/proj"
    assert {"uv_project/proj/uv.lock", "uv_project/lib/tinylib.py"} < found.files.keys()


def test_the_digest_is_of_what_is_installed_and_not_of_the_script(tmp_path):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    before = uv_project.find(folder, "here").digest
    (folder / "train.py").write_text("print(2)\n")
    assert uv_project.find(folder, "here").digest == before
    (folder / "lib" / "tinylib.py").write_text("answer = 43\n")
    assert uv_project.find(folder, "here").digest != before


def test_a_member_of_a_workspace_has_its_own_dependencies(tmp_path):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    member = folder / "apps" / "one"
    member.mkdir(parents=True)
    (member / "pyproject.toml").write_text('[project]\nname = "one"\nversion = "1"\nrequires-python = ">=3.10"\n')
    with open(folder / "pyproject.toml", "a") as project:
        project.write('\n[tool.uv.workspace]\nmembers = ["apps/*"]\n')
    uv_projects.lock(folder)
    for script in (folder / "train.py", member / "main.py"):
        script.touch()
    assert uv_project.find(folder, "here").member == "uv_project"
    found = uv_project.find(member, "here")
    assert found.member == "uv_project/apps/one"
    assert "uv_project/apps/one/pyproject.toml" in found.files
    assert not {"uv_project/train.py", "uv_project/apps/one/main.py"} & found.files.keys()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: (folder / "uv.lock").unlink(), r"there is no uv.lock beside x.py or above it; `uv lock` makes"),
        (lambda folder: (folder / "uv.lock").write_text("{}"), r"proj/uv.lock is no lock file of uv; `uv lock` in "),
        (lambda folder: (folder / "uv.lock").write_bytes(b"\xff"), r"proj/uv.lock can't be used: "),
        (lambda folder: (folder / "pyproject.toml").unlink(), r"uv.lock has no pyproject.toml beside it"),
        (lambda folder: (folder / "lib").rename(folder / "gone"), r"takes a package from .*/proj/lib, and nothing is"),
    ],
)
def test_what_is_no_project_is_refused(tmp_path, spoil, says):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    spoil(folder)
    with pytest.raises(UsageError, match=says):
        uv_project.find(folder, "beside x.py")
