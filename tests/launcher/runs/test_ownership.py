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


def lay(user: User, root: Path, name: str, state: str = "", process: object = None, **files: object) -> Path:
    """A run folder that others may read, in this state, with its JSON files."""
    submission = {"schema": 1, "queue": "direct", "host": processes.host(), "first_attempt": 1, "process": process}
    status = {"schema": 1, "state": state, "attempt": 1, "exit_code": None, "reason": "", "process": process}
    plan = {"schema": 1, "name": "mnist-o2", "words": ["amp=o2"], "run_id": name}
    for file, values in {"plan": plan, "submission": submission, "status": status, **files}.items():
        if file != "status" or state:
            user.write(root / name / f"{file}.json", values)  # type: ignore[arg-type]
    if not (root / ".unfinished").exists():
        user.write(root / ".unfinished" / name, "", 0o600)
    return root / name


def touching(user: User, root: Path, touched: Path) -> dict[str, object]:
    """A plan whose container is started by a program that touches a file."""
    program = user.write(root / "program", f"#!/bin/sh\n: >{touched}\n", 0o755)
    return {"schema": 1, "container": {"runtime": {"kind": "docker", "command": [str(program)]}}}


@pytest.fixture
def session(alice: User) -> Iterator[subprocess.Popen[bytes]]:
    """A session of the victim's own that has nothing to do with any run."""
    started = subprocess.Popen(alice.argv("sleep", "600"), start_new_session=True)
    until(lambda: Path(f"/proc/{started.pid}/comm").read_text().strip() == "sleep")
    yield started
    started.kill()
    started.wait()


def identity(started: subprocess.Popen[bytes]) -> dict[str, object] | None:
    return processes.to_json(processes.identity(started.pid))


PROBLEMS = """
import sys
from launcher.runs import ownership
for root, share in zip(sys.argv[1::2], sys.argv[2::2]):
    print(ownership.root_problem(root, shared=share == "group") or "none", ownership.is_shared(root))
"""


def test_a_root_takes_runs_where_nobody_else_may_replace_the_code(alice: User, open_folder: Path) -> None:
    asked: list[str] = []
    expected = [
        (61001, 0o755, "none", "none False"),
        (61001, 0o775, "none", "others could replace your code there; chmod go-w"),
        (61001, 0o757, "none", "others could replace your code there; chmod go-w"),
        (61001, 0o775, "group", "none False"),
        (61001, 0o1777, "none", "none False"),  # nobody renames what another made
        (61001, 0o3770, "none", "none True"),
        (61001, 0o1770, "none", "none False"),
        (61002, 0o755, "none", "it belongs to uid 61002, who could replace your code; say share=group"),
        (61002, 0o3777, "none", "it belongs to uid 61002"),
        (61002, 0o3775, "group", "none True"),
        (61002, 0o2775, "group", "it is not set up for a group; uid 61002 can do that: chmod 3770"),
        (0, 0o755, "none", "none False"),  # root of a container
        (0, 0o777, "none", "others could replace your code there"),
    ]
    for number, (uid, mode, share, _) in enumerate(expected):
        (root := open_folder / f"root-{number}").mkdir()
        os.chown(root, uid, users.GROUP)
        root.chmod(mode)
        asked += [str(root), share]
    done = alice.run(users.python(), "-c", PROBLEMS, *asked)
    for (*root, problem), said in zip(expected, done.stdout.splitlines(), strict=True):
        assert said.startswith(problem), (root, said)


def test_a_group_may_write_into_a_root_where_it_is_the_users_alone(root: Path) -> None:
    root.chmod(0o775)
    for group, problem in ((os.getegid(), ""), (users.GROUP, "others could replace your code there")):
        os.chown(root, -1, group)
        assert ownership.root_problem(str(root), shared=False).startswith(problem)
        assert bool(ownership.root_problem(str(root), shared=False)) is bool(problem)


def test_what_is_gone_or_a_link_to_anothers_is_not_the_callers_and_folders_of_theirs_alone_are(root: Path) -> None:
    own, others = root / "own", root / "others"
    for folder in (own, others):
        folder.mkdir()
    os.chown(others, 61002, -1)
    (root / "to-others").symlink_to(others)
    (root / "to-own").symlink_to(own)
    (root / "of-others-to-own").symlink_to(own)
    os.chown(root / "of-others-to-own", 61002, -1, follow_symlinks=False)
    (root / "file").touch()
    mine = [name for name in sorted(os.listdir(root)) if ownership.is_mine(root / name, str(root))]
    assert (mine, ownership.is_mine(root / "gone", str(root))) == (["file", "own", "to-own"], False)
    assert [ownership.own_folders(str(root), name) for name in ("own", "others", "to-own", "file")] == [
        [own],
        [],
        [],
        [],
    ]
    (root / f"others-{os.geteuid()}").mkdir()
    assert ownership.own_folders(str(root), "others") == [root / f"others-{os.geteuid()}"]


def test_nothing_is_done_to_anothers_run_nor_to_a_process_or_by_a_program_that_it_names(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    touched = alice.home / "touched"
    folder = lay(mallory, root, THEIRS, "running", identity(session), plan=touching(mallory, root, touched))
    folder.chmod(0o777)  # so that only its owner protects it
    for words in (("cancel", "--now", THEIRS), ("rm", "--force", THEIRS), ("resume", THEIRS)):
        done = alice.launcher(*words, f"run_root={root}")
        assert (done.returncode, f"{THEIRS} belongs to uid 61002" in done.stderr) == (2, True), done.stderr
    assert alice.launcher("cancel", "--now", f"run_root={root}").returncode == 2
    shell = f"{users.python()} -m launcher shell {THEIRS} run_root={root}"
    done = alice.run("script", "-qec", shell, "/dev/null")  # a shell needs a terminal
    assert (done.returncode, "belongs to uid 61002" in done.stdout) == (2, True), done.stdout
    assert session.poll() is None and not touched.exists()
    assert (folder / "status.json").exists()


def test_the_command_that_removes_ones_own_container_is_not_taken_from_a_file(alice: User, root: Path) -> None:
    touched = alice.home / "touched"
    lay(alice, root, MINE, "running", plan=touching(alice, root, touched))
    alice.launcher("cancel", "--now", MINE, f"run_root={root}")
    assert not touched.exists()


def test_a_record_that_another_user_wrote_into_ones_own_folder_counts_as_damaged(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    folder, theirs = lay(alice, root, MINE), lay(mallory, root, THEIRS, "running", identity(session))
    for name in ("submission.json", "status.json"):
        (theirs / name).replace(folder / name)
    done = alice.launcher("cancel", "--now", MINE, f"run_root={root}")
    assert session.poll() is None
    assert "Traceback" not in done.stderr


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
    conf = mallory.write(mallory.home / "slurm.conf", "PluginDir=/tmp/evil")
    queued = {"schema": 1, "queue": "slurm", "first_attempt": 1, "script": "x"}
    queued |= {"slurm_conf": str(conf), "answer": str(answer)}
    folders = [lay(mallory, root, QUEUED, submission=queued), lay(mallory, root, THEIRS, "done")]
    mallory.write(folders[1] / "attempts" / "1" / "stdout.log", "the loss is 0.1\n")
    mallory.write(folders[1] / "arms" / "00" / "plan.json", {"schema": 1})
    mallory.run("chmod", "-R", "a+rwX", *folders)
    lay(alice, root, MINE, "done")
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
    folder = lay(mallory, root, THEIRS, "failed")
    for name in ("result.json", "metrics.jsonl", "plan.json"):
        mallory.run("rm", "-f", folder / name)
        mallory.run("mkfifo", folder / name)
    mallory.run("mkdir", "-p", folder / "attempts" / "1")
    mallory.run("mkfifo", folder / "attempts" / "1" / "stderr.log")
    for words in (("ls",), ("ls", THEIRS), ("logs", THEIRS), ("report", THEIRS)):
        done = alice.launcher(*words, f"run_root={root}")
        assert "Traceback" not in done.stderr


def test_a_private_run_of_another_user_is_not_called_lost(alice: User, mallory: User, root: Path) -> None:
    folder = lay(mallory, root, THEIRS, "running")
    folder.chmod(0o700)
    done = alice.launcher("ls", f"run_root={root}")
    assert done.returncode == 0, done.stderr
    assert "unreachable" in done.stdout
    assert "uid 61002" in done.stdout


def test_a_link_to_ones_own_folder_that_another_user_made_is_theirs(alice: User, mallory: User, root: Path) -> None:
    own = lay(alice, root, MINE, "done")
    mallory.run("ln", "-s", own, root / THEIRS)
    done = alice.launcher("rm", THEIRS, f"run_root={root}")
    assert (done.returncode, "belongs to uid 61002" in done.stderr) == (2, True)


def test_the_user_with_the_overflow_uid_owns_runs_in_a_root_that_nobody_writes_in(open_folder: Path) -> None:
    """Containers often run as that user."""
    nobody = users.make(open_folder, 65534)
    root = open_folder / "own"
    root.mkdir()
    os.chown(root, nobody.uid, nobody.uid)
    lay(nobody, root, MINE, "done")
    root.chmod(0o555)
    listed = nobody.launcher("ls", f"run_root={root}")
    assert MINE in listed.stdout and "OWNER" not in listed.stdout, listed.stdout + listed.stderr


def in_namespace(user: User, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m launcher` in a user namespace where no uid is mapped: all users look alike there."""
    return user.run("unshare", "--user", users.python(), "-m", "launcher", *words)


def test_in_a_user_namespace_a_root_that_others_may_write_in_is_for_looking_only(
    alice: User, mallory: User, root: Path, session: subprocess.Popen[bytes]
) -> None:
    lay(mallory, root, THEIRS, "running", identity(session))
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
    folder = lay(alice, root, MINE, "done")
    done = in_namespace(alice, "rm", MINE, f"run_root={root}")
    assert done.returncode == 0, done.stderr
    assert not folder.exists()


def test_in_a_user_namespace_that_maps_the_caller_others_stay_others(alice: User, mallory: User, root: Path) -> None:
    lay(mallory, root, THEIRS, "done")
    words = ("--user", "--map-root-user", users.python(), "-m", "launcher", "rm", THEIRS, f"run_root={root}")
    done = alice.run("unshare", *words)
    assert done.returncode == 2
    assert (root / THEIRS).exists()
