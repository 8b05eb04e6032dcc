"""Environments made by the real uv: once, whoever asks, and whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.code import uv_environment, uv_project
from launcher.errors import LauncherError, UsageError
from tests.launcher import uv_projects
from tests.launcher.run_folders import until

NAME = "one"
MAKE = """
import sys
from pathlib import Path
from launcher.code import uv_environment, uv_project
project = uv_project.find(Path(sys.argv[1]), "here")
for line in uv_environment.make(Path(sys.argv[2]), "one", project.files, project.member, str(project.lock)):
    if line:
        print(line, flush=True)
"""


@pytest.fixture
def place(tmp_path):
    return tmp_path / "environments"


def make(folder: Path, place: Path) -> list[str]:
    project = uv_project.find(folder, "here")
    made = uv_environment.make(place, NAME, project.files, project.member, str(project.lock))
    return [line for line in made if line]


def start(folder: Path, place: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MAKE, str(folder), str(place)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


def answer(place: Path) -> str:
    python = uv_environment.python_of(place, NAME)
    asked = [python, "-c", "import tinylib; print(tinylib.answer, tinylib.__file__)"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, cwd="/").stdout


def test_it_has_what_is_locked_and_needs_nothing_of_the_project(tmp_path, place, monkeypatch):
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", str(tmp_path / "another"))
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    first, *_, last = make(folder, place)
    assert first == f"making the environment of {folder}/uv.lock in {place}/one"
    assert last.startswith("environment made in ") and float(last.split()[-2]) < time.monotonic()
    (folder / "lib").rename(tmp_path / "gone")
    assert answer(place).startswith(f"42 {place}/one/lib/")
    assert sorted(path.name for path in place.iterdir()) == ["one", "one.lock", "one.log"]


def test_two_at_once_make_it_once(tmp_path, place):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    (tmp_path / "hold").touch()
    makers = [start(folder, place), start(folder, place)]
    waiting = until(lambda: uv_projects.builds(tmp_path) and [m for m in makers if "another" in first_line(m)], 60.0)
    (tmp_path / "hold").unlink()
    rest = [maker.communicate(timeout=60)[0] for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0], rest
    assert len(waiting) == 1 and not any("another launcher" in text for text in rest)
    assert sum("environment made in " in text for text in rest) == uv_projects.builds(tmp_path) == 1


_first: dict[int, str] = {}


def first_line(maker: subprocess.Popen[str]) -> str:
    if maker.pid not in _first:
        assert maker.stdout is not None
        _first[maker.pid] = maker.stdout.readline()
    return _first[maker.pid]


def test_what_a_killed_launcher_left_is_made_again_once_its_uv_has_ended(tmp_path, place):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    (tmp_path / "hold").touch()
    killed = start(folder, place)
    until(lambda: uv_projects.builds(tmp_path), 60.0)
    killed.kill()  # the launcher alone: its uv goes on
    killed.wait()
    assert not uv_environment.is_ready(place, NAME)
    second = start(folder, place)
    assert "another launcher makes this environment" in first_line(second)
    (tmp_path / "hold").unlink()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert "making the environment" in said
    assert answer(place).startswith("42 ")


def test_what_was_killed_whole_is_made_again(tmp_path, place):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    (tmp_path / "hold").touch()
    killed = start(folder, place)
    until(lambda: uv_projects.builds(tmp_path), 60.0)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (tmp_path / "hold").unlink()
    make(folder, place)
    assert answer(place).startswith("42 ")
    assert make(folder, place) == []


def test_one_whose_python_is_gone_is_made_again(tmp_path, place):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    make(folder, place)
    python = uv_environment.python_of(place, NAME)
    python.unlink()
    python.symlink_to("/nowhere/python3")
    assert make(folder, place)
    assert answer(place).startswith("42 ")


def outdated(folder: Path) -> None:
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace('requires-python = ">=3.10"', 'requires-python = ">=3.11"'))


def garbled(folder: Path) -> None:
    (folder / "uv.lock").write_text("version = 1\n[[[\n")


def unresolvable(folder: Path) -> None:
    text = (folder / "pyproject.toml").read_text().replace('["tinylib"]', '["tinylib", "another>2"]')
    (folder / "pyproject.toml").write_text(text.replace("[tool.uv]\n", "[tool.uv]\nno-index = true\n"))


def broken(folder: Path) -> None:
    (folder / "lib" / "backend.py").write_text("raise OSError('no compiler here')\n")


def test_extras_are_installed_by_a_default_group_that_names_them_whatever_the_shell_says(tmp_path, place, monkeypatch):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    text = (folder / "pyproject.toml").read_text().replace('dependencies = ["tinylib"]', "dependencies = []")
    text = text.replace("[tool.uv]\n", '[tool.uv]\ndefault-groups = ["train"]\n')
    text += '\n[project.optional-dependencies]\ntiny = ["tinylib"]\n\n[dependency-groups]\ntrain = ["proj[tiny]"]\n'
    (folder / "pyproject.toml").write_text(text)
    uv_projects.lock(folder)
    # They would change what is installed, and not the name of the environment.
    for name in ("UV_NO_DEFAULT_GROUPS", "UV_NO_DEV", "UV_NO_INSTALL_LOCAL"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_NO_GROUP", "train")
    make(folder, place)
    assert answer(place).startswith("42 ")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (outdated, r"^python=uv: \S+/uv.lock is out of date with its pyproject.toml: run `uv lock` in \S+/proj \("),
        (garbled, r"^python=uv: uv can't make the environment of \S+/uv.lock: Failed to parse `uv.lock`: .*one.log\)$"),
        (unresolvable, r"No solution found .*another.* \(all of it in \S+/one.log\)$"),
        (broken, r"Failed to build `tinylib .*no compiler here.* \(all of it in \S+/one.log\)$"),
    ],
)
def test_a_lock_file_that_can_not_be_used_is_one_sentence_and_leaves_no_environment(tmp_path, place, spoil, says):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    spoil(folder)
    with pytest.raises(UsageError, match=says) as refused:
        make(folder, place)
    assert "\n" not in str(refused.value)
    assert sorted(path.name for path in place.iterdir()) == ["one.lock", "one.log"]


def test_a_network_that_fails_is_no_fault_of_the_lock_file(tmp_path, place):
    folder = uv_projects.make(tmp_path, tmp_path / "proj")
    lock = folder / "uv.lock"
    listed = '\n[[package]]\nname = "six"\nversion = "1.17.0"\nsource = { registry = "http://127.0.0.1:9/simple" }\n'
    wheel = '{ url = "http://127.0.0.1:9/six-1.17.0-py2.py3-none-any.whl", hash = "sha256:' + "0" * 64 + '" }'
    text = lock.read_text().replace('    { name = "tinylib" },\n', '    { name = "six" },\n    { name = "tinylib" },\n')
    text = text.replace("requires-dist = [{", 'requires-dist = [{ name = "six" }, {')
    lock.write_text(text + listed + f"wheels = [\n    {wheel},\n]\n")
    project = folder / "pyproject.toml"
    project.write_text(
        project.read_text().replace('["tinylib"]', '["six", "tinylib"]')
        + '\n[[tool.uv.index]]\nurl = "http://127.0.0.1:9/simple"\ndefault = true\n'
    )
    with pytest.raises(LauncherError) as failed:
        make(folder, place)
    assert failed.value.exit_code == 3
    assert "six" in str(failed.value)


def test_a_host_without_uv_is_told_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(uv_environment.importlib.util, "find_spec", lambda name: None)
    assert f"this installs it there: {sys.executable} -m pip install" in uv_environment.lacking()
    installed = tmp_path / ".local" / "bin" / "uv"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\n")
    assert uv_environment.lacking()
    installed.chmod(0o755)
    assert uv_environment.uv() == [str(installed)]


def test_in_a_root_that_a_group_shares_each_user_has_environments_of_their_own() -> None:
    assert [uv_environment.place("/runs", uid).name for uid in (None, 7)] == [".environments", ".environments-7"]


@pytest.mark.parametrize(("length", "cut"), [(400, False), (401, True)])
def test_a_long_complaint_of_uv_has_its_beginning_and_its_end(tmp_path: Path, length: int, cut: bool) -> None:
    log = tmp_path / "log"
    log.write_text("error: A" + "x" * (length - 2) + "Z\n  hint: none")
    said = str(uv_environment._refusal(log, "/p/uv.lock", 2))
    assert ": Ax" in said and f"xZ (all of it in {log})" in said
    assert (" … " in said) is cut
