"""Another user's folder: each attack by a real second user, and what is shown of their runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.runs import ownership, processes
from tests.launcher import users
from tests.launcher.run_folders import until
from tests.launcher.users import User

pytestmark = users.needs_root

THEIRS = "20260102-030405-brave-otter"
MINE = "20260102-030406-calm-heron"
QUEUED = "20260102-030407-late-lark"


@pytest.fixture
def root(open_folder: Path) -> Path:
    """A run root that everybody may write in, as in /tmp."""
    folder = open_folder / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def lay(user: User, root: Path, name: str, **files: object) -> Path:
    """A run folder that others may read, with these JSON files."""
    folder = root / name
    plan = {"schema": 1, "name": "mnist-o2", "words": ["amp=o2"], "run_id": name}
    for file, values in {"plan": plan, **files}.items():
        user.write(folder / f"{file}.json", values)  # type: ignore[arg-type]
    user.write(root / ".unfinished" / name, "", 0o600) if not (root / ".unfinished").exists() else None
    return folder


def identity(pid: int) -> dict[str, object]:
    process = processes.identity(pid)
    assert process is not None
    return processes.to_json(process)


def submission(**more: object) -> dict[str, object]:
    return {"schema": 1, "queue": "direct", "host": processes.host(), "first_attempt": 1, **more}


def status(state: str, **more: object) -> dict[str, object]:
    return {"schema": 1, "state": state, "attempt": 1, "exit_code": None, "reason": "", **more}


@pytest.fixture
def session(alice: User) -> Iterator[subprocess.Popen[bytes]]:
    """A session of the victim's own that has nothing to do with any run."""
    started = subprocess.Popen(alice.argv("sleep", "600"), start_new_session=True)
    until(lambda: Path(f"/proc/{started.pid}/comm").read_text().strip() == "sleep")
    yield started
    started.kill()
    started.wait()


def test_the_command_of_a_container_runtime_in_anothers_plan_is_not_run(alice: User, mallory: User, root: Path) -> None:
    touched = alice.home / "touched"
    program = mallory.write(root / "program", f"#!/bin/sh\n: >{touched}\n", 0o755)
    runtime = {"kind": "docker", "command": [str(program)]}
    plan = {"schema": 1, "run_id": THEIRS, "container": {"runtime": runtime}}
    lay(mallory, root, THEIRS, plan=plan, submission=submission(), status=status("running")).chmod(0o777)
    for words in (("cancel", "--now", THEIRS), ("rm", "--force", THEIRS)):
        done = alice.launcher(*words, f"run_root={root}")
        assert done.returncode == 2
        assert f"{THEIRS} belongs to uid 61002" in done.stderr
        assert "Traceback" not in done.stderr
    assert not touched.exists()
    assert (root / THEIRS / "status.json").exists()


def test_the_command_that_removes_ones_own_container_is_not_taken_from_a_file(alice: User, root: Path) -> None:
    touched = alice.home / "touched"
    program = alice.write(alice.home / "program", f"#!/bin/sh\n: >{touched}\n", 0o755)
    runtime = {"kind": "docker", "command": [str(program)]}
    plan = {"schema": 1, "run_id": MINE, "container": {"runtime": runtime}}
    lay(alice, root, MINE, plan=plan, submission=submission(), status=status("running"))
    alice.launcher("cancel", "--now", MINE, f"run_root={root}")
    assert not touched.exists()


def test_a_process_that_anothers_run_names_is_not_killed(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    process = identity(session.pid)
    folder = lay(
        mallory, root, THEIRS, submission=submission(process=process), status=status("running", process=process)
    )
    folder.chmod(0o777)  # so that nothing but whose it is stands against it
    for words in (("cancel", "--now", THEIRS), ("cancel", "--now"), ("rm", "--force", THEIRS)):
        done = alice.launcher(*words, f"run_root={root}")
        assert done.returncode == 2, done.stdout
        assert session.poll() is None


def test_a_record_that_another_user_wrote_into_ones_own_folder_counts_as_damaged(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    folder = lay(alice, root, MINE, submission=submission())
    folder.chmod(0o777)
    (folder / "submission.json").unlink()
    process = identity(session.pid)
    mallory.write(folder / "submission.json", submission(process=process))
    mallory.write(folder / "status.json", status("running", process=process))
    done = alice.launcher("cancel", "--now", MINE, f"run_root={root}")
    assert session.poll() is None
    assert "Traceback" not in done.stderr


def test_the_plan_of_anothers_run_is_neither_resumed_nor_opened_a_shell_in(
    alice: User, mallory: User, root: Path
) -> None:
    lay(mallory, root, THEIRS, submission=submission(), status=status("failed", exit_code=1))
    done = alice.launcher("resume", THEIRS, f"run_root={root}")
    assert (done.returncode, "belongs to uid 61002" in done.stderr) == (2, True)
    shell = f"{users.python()} -m launcher shell {THEIRS} run_root={root}"
    done = alice.run("script", "-qec", shell, "/dev/null")  # a shell wants a terminal
    assert "belongs to uid 61002" in done.stdout
    assert done.returncode == 2


def test_anothers_record_of_a_sweep_does_not_say_which_runs_to_end(alice: User, mallory: User, root: Path) -> None:
    own = lay(alice, root, MINE, submission=submission())
    (root / ".sweeps").mkdir(mode=0o1777)
    (root / ".sweeps").chmod(0o1777)
    mallory.write(root / ".sweeps" / f"{THEIRS}.json", {"schema": 1, "id": THEIRS, "runs": [MINE]})
    done = alice.launcher("rm", "--force", THEIRS, f"run_root={root}")
    assert own.exists(), done.stdout


def test_anothers_runs_are_shown_by_their_files_as_theirs_and_nothing_is_asked_or_written(
    alice: User, mallory: User, root: Path, open_folder: Path
) -> None:
    """squeue loads the plugins that its configuration names."""
    asked = alice.home / "asked"
    squeue = open_folder / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f'#!/bin/sh\necho "conf=$SLURM_CONF" >>{asked}\n')
    squeue.chmod(0o755)
    answer = mallory.write(root / QUEUED / "sbatch.1.out", "17\n")
    conf = mallory.write(open_folder / "home-61002" / "slurm.conf", "PluginDir=/tmp/evil")
    queued = submission(queue="slurm", slurm_conf=str(conf), answer=str(answer), script="x")
    folders = [lay(mallory, root, QUEUED, submission=queued)]
    folders.append(lay(mallory, root, THEIRS, submission=submission(), status=status("done", exit_code=0)))
    mallory.write(folders[1] / "attempts" / "1" / "stdout.log", "the loss is 0.1\n")
    mallory.write(folders[1] / "arms" / "00" / "plan.json", {"schema": 1})
    mallory.run("chmod", "-R", "a+rwX", *folders)
    lay(alice, root, MINE, submission=submission(), status=status("done", exit_code=0))
    before = {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")}
    shown = {}
    for words in (("ls",), ("ls", QUEUED), ("ls", THEIRS), ("logs", THEIRS), ("report", QUEUED, THEIRS)):
        path = {"PATH": f"{squeue.parent}:/usr/bin:/bin"}
        done = alice.launcher(*words, f"run_root={root}", environment=path)
        assert done.returncode == 0, done.stderr
        shown[words] = done.stdout
    rows = {row.split()[0]: row for row in shown["ls",].splitlines() if row}
    assert "OWNER" in rows["RUN"]
    assert "uid 61002" in rows[THEIRS] and "done" in rows[THEIRS] and "uid 61002" in rows[QUEUED]
    assert "uid" not in rows[MINE]
    assert "uid 61002: shown by its files alone" in shown["ls", THEIRS]
    assert "uid 61002" in shown["ls", QUEUED]
    assert "the loss is 0.1" in shown["logs", THEIRS]
    assert not asked.exists()
    assert {path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*")} == before


def test_a_pipe_in_place_of_a_record_blocks_no_process(alice: User, mallory: User, root: Path) -> None:
    folder = lay(mallory, root, THEIRS, submission=submission(), status=status("failed", exit_code=1))
    for name in ("result.json", "metrics.jsonl", "plan.json"):
        mallory.run("rm", "-f", folder / name)
        mallory.run("mkfifo", folder / name)
    mallory.run("mkdir", "-p", folder / "attempts" / "1")
    mallory.run("mkfifo", folder / "attempts" / "1" / "stderr.log")
    for words in (("ls",), ("ls", THEIRS), ("logs", THEIRS), ("report", THEIRS)):
        done = alice.launcher(*words, f"run_root={root}", seconds=120)
        assert "Traceback" not in done.stderr


def test_a_private_run_of_another_user_is_not_called_lost(alice: User, mallory: User, root: Path) -> None:
    folder = lay(mallory, root, THEIRS, submission=submission(), status=status("running"))
    folder.chmod(0o700)
    done = alice.launcher("ls", f"run_root={root}")
    assert done.returncode == 0, done.stderr
    assert "unreachable" in done.stdout
    assert "uid 61002" in done.stdout


def test_a_link_to_ones_own_folder_that_another_user_made_is_theirs(alice: User, mallory: User, root: Path) -> None:
    own = lay(alice, root, MINE, submission=submission(), status=status("done", exit_code=0))
    mallory.run("ln", "-s", own, root / THEIRS)
    done = alice.launcher("rm", THEIRS, f"run_root={root}")
    assert (done.returncode, "belongs to uid 61002" in done.stderr) == (2, True)


@pytest.mark.skipif(not ownership._sees_every_uid(), reason="in a user namespace that uid is everybody's")
def test_the_user_with_the_overflow_uid_owns_runs_in_a_root_that_nobody_writes_in(open_folder: Path) -> None:
    """Containers often run as that user."""
    nobody = users.make(open_folder, 65534)
    root = open_folder / "own"
    root.mkdir()
    os.chown(root, nobody.uid, nobody.uid)
    lay(nobody, root, MINE, submission=submission(), status=status("done", exit_code=0))
    root.chmod(0o555)
    listed = nobody.launcher("ls", f"run_root={root}")
    assert MINE in listed.stdout and "OWNER" not in listed.stdout, listed.stdout + listed.stderr


def in_namespace(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m launcher` in a user namespace where no uid is mapped: all users look alike there."""
    return user.run("unshare", "--user", users.python(), "-m", "launcher", *words)


def test_in_a_user_namespace_a_root_that_others_may_write_in_is_for_looking_only(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    process = identity(session.pid)
    lay(mallory, root, THEIRS, submission=submission(process=process), status=status("running", process=process))
    done = in_namespace(alice, "cancel", "--now", THEIRS, f"run_root={root}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "others may write there" in done.stderr
    assert session.poll() is None
    listed = in_namespace(alice, "ls", f"run_root={root}")
    assert "others may write there" in listed.stdout


def test_in_a_user_namespace_a_root_that_nobody_else_may_write_in_is_ones_own(alice: User, open_folder: Path) -> None:
    root = open_folder / "own"
    root.mkdir(mode=0o700)
    os.chown(root, alice.uid, alice.uid)
    folder = lay(alice, root, MINE, submission=submission(), status=status("done", exit_code=0))
    done = in_namespace(alice, "rm", MINE, f"run_root={root}")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_in_a_user_namespace_that_maps_the_caller_others_stay_others(alice: User, mallory: User, root: Path) -> None:
    lay(mallory, root, THEIRS, submission=submission(), status=status("done", exit_code=0))
    words = ("--user", "--map-root-user", users.python(), "-m", "launcher", "rm", THEIRS, f"run_root={root}")
    done = alice.run("unshare", *words)
    assert done.returncode == 2
    assert (root / THEIRS).exists()
