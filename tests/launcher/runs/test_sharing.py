"""A run root that a group shares: two real users, each of whom sees the other's runs and can act on none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from amp_launcher import run_folder
from amp_launcher.loop import checkpoint
from amp_launcher.metrics import MetricsWriter
from launcher.containers.description import User as ContainerUser
from launcher.containers.runtime import Runtime
from launcher.errors import UsageError
from launcher.executors import execute
from launcher.plan.model import ContainerPlan
from launcher.runs import selection, store
from tests.launcher import users, warm
from tests.launcher.stand_in import lay
from tests.launcher.users import GROUP, User

OWN = ("checkpoints", ".code-0", ".cache-0")
"""Of a run and of the root: what stays its owner's alone."""
JOB = ("gpus=0", "steps=3", "batch=8", "data=synthetic", "checkpoint.every=1", "telemetry.every=1", "share=group")

BARE = ("train.bare=true", "require_proof=false", "amp=o0", "gpus=0", "share=group")


@pytest.fixture
def lab(open_folder: Path) -> Path:
    """A folder of the group's, in which what is made is the group's."""
    folder = open_folder / "lab"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    return folder


def launcher(*words: str, umask: int) -> subprocess.CompletedProcess[str]:
    """`python -m launcher` as whoever runs the tests."""
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, capture_output=True, text=True, umask=umask)


def modes(folder: Path) -> dict[str, int]:
    """The modes of everything in a folder, without the bits that say whose group new files have."""
    inside = [path for path in folder.rglob("*") if not set(path.relative_to(folder).parts) & set(OWN)]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) & 0o777 for path in inside}


def check_modes(run: Path) -> None:
    """The group may read all but what may be secret: variables, and uncommitted code where this checkout has any. The
    exit code is between the script and itself."""
    mode_of = modes(run)
    wrong = {name: oct(mode) for name, mode in mode_of.items() if mode & 0o027 or not mode & 0o040}
    assert wrong.keys() & {".environment", ".shell"}, "a script here has this shell's variables, others their own"
    assert wrong.keys() - {"code.diff", ".environment", ".shell"} == {"attempts/1/exit_code"}
    assert set(wrong.values()) == {"0o600"}
    assert {"plan.json", "status.json", "attempts/1/stdout.log"} <= mode_of.keys()


@users.needs_root
def test_two_users_see_each_others_runs_and_act_on_none(lab: Path, alice: User) -> None:
    root = lab / "runs"
    done = launcher(*JOB, f"python={warm.python()}", f"run_root={root}", umask=0)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = selection.run_names(str(root))
    assert stat.S_IMODE(root.stat().st_mode) == 0o3770
    assert stat.S_IMODE((root / run).stat().st_mode) & 0o777 == 0o750
    check_modes(root / run)
    assert stat.S_IMODE((root / run / "checkpoints").stat().st_mode) & 0o777 == 0o700
    assert stat.S_IMODE((root / ".code-0").stat().st_mode) & 0o777 == 0o700

    shown = alice.launcher("ls", f"run_root={root}")
    assert "root" in shown.stdout and "done" in shown.stdout and "proved" in shown.stdout, shown.stdout
    assert "step" in alice.launcher("logs", run, f"run_root={root}").stdout
    reported = alice.launcher("report", run, f"run_root={root}")
    assert "proved" in reported.stdout, reported.stdout + reported.stderr
    for words in (("cancel", "--now", run), ("rm", "--force", run), ("resume", run, "steps=9")):
        refused = alice.launcher(*words, f"run_root={root}")
        assert (refused.returncode, "belongs to root" in refused.stderr) == (2, True), refused.stderr
    for path in (root / run / "checkpoints", root / ".code-0"):
        assert alice.run("ls", path).returncode != 0

    script = alice.write(alice.home / "train.py", "print('trained')")
    words = ("recipe=script", f"script={script}", *BARE, "workdir=run", f"run_root={root}")
    hers = alice.launcher(*words, umask=0o077)
    assert hers.returncode == 0, hers.stdout + hers.stderr
    (other,) = set(selection.run_names(str(root))) - {run}
    assert stat.S_IMODE((root / other / "work").stat().st_mode) & 0o777 == 0o700
    (root / other / "work").rmdir()
    check_modes(root / other)
    assert "uid 61001" in launcher("ls", f"run_root={root}", umask=0o077).stdout
    assert launcher("rm", "--force", other, f"run_root={root}", umask=0o077).returncode == 2
    assert alice.launcher("rm", other, f"run_root={root}").returncode == 0
    (removed,) = (root / f".trash-{alice.uid}").glob(f"*/{other}")
    assert stat.S_IMODE((root / f".trash-{alice.uid}").stat().st_mode) & 0o777 == 0o700
    assert (
        not (root / other).exists()
        and launcher("rm", "--now", "--yes", f"run_root={root}", umask=0o077).returncode == 0
    )
    assert removed.exists()  # it is not in the trash of others


@users.needs_root
def test_a_root_of_another_user_that_is_not_set_up_for_a_group_is_refused(lab: Path, alice: User) -> None:
    root = lab / "runs"
    root.mkdir(mode=0o770)
    root.chmod(0o770)
    os.chown(root, 0, GROUP)
    done = alice.launcher(*JOB, f"run_root={root}")
    assert done.returncode == 2
    assert f"root can do that: chmod 3770 {root}" in done.stderr


@users.needs_root
@pytest.mark.parametrize("changed", ["", "plan.json"])
def test_a_job_whose_folder_was_replaced_before_it_began_does_not_run(lab: Path, alice: User, changed: str) -> None:
    """Whose the root is may rename what others made in it."""
    root = lab / "runs"
    script = alice.write(alice.home / "train.py", "pass")
    store.make_root(root, shared=True)
    done = alice.launcher("recipe=script", f"script={script}", *BARE, f"run_root={root}")
    assert done.returncode == 0, done.stderr
    (run,) = selection.run_names(str(root))
    os.chown(root / run / changed, 61002, GROUP)
    before = sorted(path.name for path in (root / run / "attempts").iterdir())
    again = alice.run("bash", root / run / "run.sh")
    assert again.returncode == 1
    assert "whose run this is" in again.stderr
    assert sorted(path.name for path in (root / run / "attempts").iterdir()) == before


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_a_trainer_writes_gets_its_mode_from_the_folder(tmp_path: Path, umask: int, shared: bool) -> None:
    """In a container the umask is the image's."""
    before = os.umask(umask)
    try:
        folder = tmp_path / "run"
        store.make_folder(folder, shared=shared)
        run_folder.write_json(folder / "result.json", {})
        writer = MetricsWriter(folder / "metrics.jsonl")
        writer.append([{"event": "start"}])
        saved = checkpoint.save(folder / "checkpoints", 1, "state", lambda file: None, {}, keep=1)
    finally:
        os.umask(before)
    for name in ("result.json", "metrics.jsonl"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == (0o640 if shared else 0o600)
    assert {stat.S_IMODE(path.stat().st_mode) & 0o777 for path in (saved.parent, saved)} == {0o700}


@pytest.mark.parametrize("shared", [False, True])
def test_uncommitted_code_is_not_for_the_group(tmp_path: Path, shared: bool) -> None:
    folder = tmp_path / "run"
    store.make_folder(folder, shared=shared)
    parts = {part: {"commit": "c" * 40, "diff": f"+secret of {part}"} for part in ("code", "script")}
    execute._write_provenance(folder, parts, shared=shared)
    came_from = store.read_json(folder / "provenance.json")
    for part, origin in parts.items():
        assert came_from[part] == {**origin, "diff": "" if shared else origin["diff"]}
        if shared:
            assert (folder / f"{part}.diff").read_text() == origin["diff"]
            assert stat.S_IMODE((folder / f"{part}.diff").stat().st_mode) == 0o600


@users.needs_root
def test_a_container_does_not_get_another_users_folder_for_its_home(tmp_path: Path, program: Path) -> None:
    home = tmp_path / "runs" / ".cache"
    home.mkdir(parents=True)
    os.chown(home, 61002, 61002)
    image = ContainerPlan(
        runtime=Runtime(kind="apptainer", command=("apptainer",), version=(1, 4, 5)),
        image="x.sif",
        asked="x",
        user=ContainerUser(uid=0, gid=0, name="root"),
    )
    with pytest.raises(UsageError, match=r"\.cache is another user's"):
        lay(tmp_path, program, container=image)
    assert selection.run_names(str(tmp_path / "runs")) == []
