"""The files beside a script that are copied with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher.code import user_code
from launcher.errors import UsageError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("from helper import go\nPrecision.from_env()\n")
    (folder / "sub" / "helper.py").write_text("")
    (folder / ".env").write_text("TOKEN=x")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "big").write_text("x")
    monkeypatch.chdir(folder)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(user_code.collect(folder / "train.py").files)


def test_the_files_beside_a_script_are_copied_without_secrets_and_hidden_folders(project: Path) -> None:
    assert names(project) == ["script/sub/helper.py", "script/train.py"]


def test_all_files_that_git_would_track_are_copied_from_a_checkout(project: Path) -> None:
    for words in (["init", "-q"], ["add", "train.py"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    (project / ".gitignore").write_text("data\n.hidden\n")
    (project / "data").write_text("x" * 100)
    inner = project / "sub" / "train2.py"
    inner.write_text("")
    assert user_code.name_in_snapshot(inner) == "script/sub/train2.py"
    assert user_code.root_of(project / ".hidden" / "big") == project / ".hidden", "for git ignores that"
    expected = ["script/.gitignore", "script/sub/helper.py", "script/sub/train2.py", "script/train.py"]
    assert sorted(user_code.collect(inner).files) == expected


@pytest.mark.parametrize("checkout", [True, False])
def test_runs_beside_a_script_are_not_copied(project: Path, checkout: bool) -> None:
    if checkout:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        (project / ".gitignore").write_text(".hidden\n")
    before = names(project)
    run = [f"runs/one-run/{name}" for name in ("plan.json", "run.sh", "attempts/1/stdout.log")]
    begun = "runs/20261123-021008-polar-condor/.plan.json.3693"
    of_the_root = ("runs/.code/abc/script/train.py", "runs/.unfinished/one-run", "runs/.sweeps/one-sweep.json")
    for name in (*run, begun, *of_the_root, "no-run/plan.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("")
    assert names(project) == sorted([*before, "script/no-run/plan.json"])


def test_a_file_that_is_being_written_is_not_copied_unless_it_is_python_or_tracked_or_included(project: Path) -> None:
    script = project / "train.py"
    with (project / "results.csv").open("w"), (project / "sub" / "helper.py").open("a"):
        assert names(project) == ["script/sub/helper.py", "script/train.py"]
        assert user_code.collect(script).left_out == {"results.csv": "being written"}
        assert "script/results.csv" in user_code.collect(script, ["results.csv"]).files
        git(project, "init", "-q")
        assert "script/results.csv" not in user_code.collect(script).files
        git(project, "add", "results.csv")
        assert "script/results.csv" in user_code.collect(script).files
    assert "script/results.csv" in names(project), "an old one is a file like any other"


def test_launchers_in_one_folder_take_no_log_of_each_other_as_code(project: Path, tmp_path: Path) -> None:
    """Each prints before it copies the code."""
    (project / "train.py").write_text("")
    words = f"train.py amp=o0 train.bare=true require_proof=false device=cpu run_root={tmp_path / 'runs'}"
    one = f"{sys.executable} -m launcher {words}"
    line = f"{one} >log.1 2>&1 & {one} 2>&1 | tee log.2 >&2; wait"
    environment = {**os.environ, "PYTHONPATH": str(Path(launcher.__path__[0]).parent)}
    subprocess.run(["bash", "-c", line], env=environment, check=True)
    assert (project / "log.1").read_text().count(" done ") == (project / "log.2").read_text().count(" done ") == 1
    (code,) = (tmp_path / "runs" / ".code").iterdir()
    assert [path.name for path in (code / "script").iterdir() if "log" in path.name] == []


def git(folder: Path, *words: str) -> None:
    configured = ("user.name=test", "user.email=test@test", "protocol.file.allow=always")
    options = [word for setting in configured for word in ("-c", setting)]
    subprocess.run(["git", "-C", str(folder), *options, *words], check=True, capture_output=True)


def test_submodules_and_inner_checkouts_are_copied_and_a_worktree_too(project: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    (library / "data").mkdir(parents=True)
    for name in ("code.py", "data/x", "new\nline é.py"):
        (library / name).write_text("")
    (library / ".gitignore").write_text("data\n")
    for folder in (library, project):
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "all")
    git(project, "submodule", "add", "-q", str(library), "lib")
    git(project, "commit", "-q", "-m", "lib")
    git(project, "clone", "-q", str(library), "cloned")
    (project / "lib" / "mine.py").write_text("")
    of_library = [".gitignore", "code.py", "new\nline é.py"]
    within = [f"script/{folder}/{name}" for folder in ("lib", "cloned") for name in of_library]
    inner = {name for name in names(project) if name.count("/") > 1}
    assert {name for name in inner if "sub/" not in name and "hidden" not in name} == {
        *within,
        "script/lib/mine.py",
    }
    git(project, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert "script/sub/helper.py" in names(tmp_path / "tree")
    assert not [name for name in names(tmp_path / "tree") if name.endswith("/.git")]


@pytest.mark.parametrize("checkout", [True, False])
def test_links_to_code_are_followed_and_links_to_data_are_not(project: Path, tmp_path: Path, checkout: bool) -> None:
    shared, data = tmp_path / "shared", tmp_path / "data"
    for folder in (shared, data):
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").write_text("")
    (shared / "__init__.py").write_text("")
    links = {
        "inside": "sub",
        "shared": shared,
        "data": data,
        "round": ".",
        "gone": "/no/such",
        "one.py": "sub/helper.py",
    }
    for name, target in links.items():
        (project / name).symlink_to(target)
    (project / "sub" / "back").symlink_to("../sub")
    (project / "sub" / "up").symlink_to("..")
    if checkout:
        git(project, "init", "-q")
    linked = [name for name in names(project) if not name.startswith(("script/sub/", "script/.hidden"))]
    assert linked == [
        "script/inside/helper.py",
        "script/one.py",
        "script/shared/__init__.py",
        "script/shared/deep/file",
        "script/train.py",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_a_checkout_that_git_refuses_to_read_is_no_folder_without_git(project: Path) -> None:
    """Else what is ignored there, as secrets and data, would go along."""
    git(project, "init", "-q")
    for path in (project, project / ".git"):
        os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match=f"git config --global --add safe.directory '{project}'"):
        user_code.collect(project / "train.py")


def test_a_checkout_whose_repository_is_gone_is_a_folder(project: Path) -> None:
    (project / ".git").write_text("gitdir: /no/such\n")
    assert names(project) == ["script/sub/helper.py", "script/train.py"]
    (project / ".git").unlink()
    git(project, "init", "-q")
    (project / "sub" / ".git").write_text("gitdir: /no/such\n")
    assert "script/sub/helper.py" in names(project), "as a submodule is that was copied without its repository"
