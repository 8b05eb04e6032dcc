"""What the system refuses, and odd places to start from: sentences, exit codes, nothing half made."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.config.paths import conf_folder
from launcher.errors import UsageError
from launcher.executors import execute
from launcher.plan.resolve import resolve
from launcher.probe import host
from launcher.runs import selection, store
from launcher.ssh import probe_client
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import NAME, make
from tests.launcher.users import needs_root

CHECKOUT = str(conf_folder().parent)


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("verb", [["plan"], ["run"], ["ls", "run_root=here"]], ids=" ".join)
def test_a_deleted_working_folder_is_reported(verb, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    text = f"import os, sys\nos.rmdir({str(gone)!r})\nfrom launcher.__main__ import main\nsys.exit(main({verb!r}))"
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        cwd=gone,
        env={**os.environ, "PYTHONPATH": CHECKOUT},
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "is gone; cd to one that is there" in done.stderr


def test_fetch_tells_an_unknown_name_from_a_run_of_this_machine(capsys, tmp_path):
    make(tmp_path, NAME)
    for name, message in (("nosuch", "no run 'nosuch'"), (NAME, "those of this machine are here already")):
        assert main(["fetch", name, f"run_root={tmp_path}"]) == 2
        assert message in capsys.readouterr().err


def test_a_user_without_a_name_is_a_number(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert probe_client.probe([spec_of("amp=o2")]).user == str(os.getuid())


def test_an_unknown_home_is_reported(monkeypatch, capsys):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    assert main(["plan"]) == 2
    assert "set HOME, or name paths in full" in capsys.readouterr().err


def as_nobody(holds):
    """Whether something holds for a user who owns nothing here."""
    child = os.fork()
    if not child:
        os.setresuid(65534, 65534, 65534)
        os._exit(0 if holds() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@needs_root
def test_a_run_root_behind_a_closed_door_is_not_writable():
    closed = Path(tempfile.mkdtemp())  # not tmp_path, whose parents are closed as well
    try:
        assert as_nobody(lambda: f"{closed} is not writable for" in host._run_root_problem(closed / "runs", False))
    finally:
        closed.rmdir()


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            lambda path: path.write_bytes(bytes(5001)),
            "has 5,001 bytes, which is not a whole number of train.ids=uint16 of 2 bytes; is it cut off?",
        ),
        (Path.mkdir, "is not a file that can be read"),
        (os.mkfifo, "is not a file that can be read"),
        (lambda path: path.symlink_to("/nowhere"), "is not a file that can be read"),
    ],
)
def test_what_is_no_file_of_token_ids_leaves_no_run(create, message, tmp_path, capsys):
    (tmp_path / "train.bin").write_bytes(bytes(5000))
    create(tmp_path / "val.bin")
    words = ("recipe=gpt", "data=tokens", f"data.dir={tmp_path}", f"run_root={tmp_path / 'runs'}")
    assert main([*words, "amp=o0", "steps=1"]) == 2
    assert f"{tmp_path / 'val.bin'} {message}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@needs_root
def test_the_sizes_of_data_files_are_those_that_the_user_may_read():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        for part, mode in (("train.bin", 0o644), ("val.bin", 0o600)):
            (Path(name) / part).write_bytes(bytes(34))
            os.chmod(Path(name) / part, mode)
        asked = [str(Path(name, part)) for part in ("train.bin", "val.bin", "other.bin")]
        assert as_nobody(lambda: dict(host._sizes(asked)) == {asked[0]: 34, asked[1]: None})


@pytest.mark.parametrize("what", ["launcher.code.code_store.store", "launcher.runs.store.write_json"])
def test_a_full_disk_is_reported_and_no_run_is_left(what, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    monkeypatch.setattr("launcher.code.code_store.store", lambda *_: None)
    monkeypatch.setattr(what, no_space)
    plan = dataclasses.replace(resolve(spec_of("amp=o2"), LAPTOP), run_root=str(root))
    with pytest.raises(UsageError, match="No space left on device"):
        execute.prepare(plan, {})
    assert selection.run_names(str(root)) == []
    assert selection.unfinished([str(root)]) == []


def test_a_run_that_could_not_be_marked_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "mark_unfinished", no_space)
    with pytest.raises(OSError):
        store.create(tmp_path, NAME)
    assert selection.run_names(str(tmp_path)) == []


def test_a_state_folder_that_takes_nothing_costs_no_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    monkeypatch.setattr("launcher.code.code_store.store", lambda *_: None)
    plan = dataclasses.replace(resolve(spec_of("amp=o2"), LAPTOP), run_root=str(tmp_path))
    folder = execute.prepare(plan, {}, {"schema": 1})
    assert (folder / "run.sh").exists()
    assert f"run_root={tmp_path} only" in capsys.readouterr().err
