"""Lines of cluster.setup in the script of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.runs import run_files, store
from launcher.runs.schema import Submission
from launcher.runs.states import Liveness, judge
from tests.launcher.stand_in import lay

FAILING = [("false",), ("export A=1", "module() { return 3; }", "module load cuda"), ("no-such-program",)]
HARMLESS = [
    ("[ -d /no/such ] && exit 9", "if false; then exit 9; fi", "export A=1"),
    ('PS1="(env) $PS1"', "[ -z $NO_SUCH_VARIABLE ]"),
]


@pytest.mark.parametrize("lines", [*FAILING, *HARMLESS], ids="; ".join)
def test_a_line_of_setup_that_fails_ends_the_run_and_a_test_or_an_unset_variable_does_not(
    tmp_path: Path, program: Path, lines: tuple[str, ...]
) -> None:
    _, folder = lay(tmp_path, program, setup=lines)
    code = subprocess.run(["bash", str(folder / "run.sh")]).returncode
    status = store.read_or_empty(folder / "status.json")
    assert (code == 0, status["state"]) == ((True, "done") if lines in HARMLESS else (False, "failed"))
    if lines in FAILING:
        assert status["reason"].startswith("a line of cluster.setup failed with exit code ")
        assert "error: cluster.setup: `" in (folder / "attempts/1/stderr.log").read_text()
        assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize(("ended", "code"), [("exit 3", 3), ("exit 0", 0), ("kill -TERM $$", -15)])
def test_setup_that_ends_the_job_is_the_reason_of_a_failed_run_unless_its_queue_knows_a_better_one(
    tmp_path: Path, program: Path, ended: str, code: int
) -> None:
    (tmp_path / "site.sh").write_text(f"{ended}\n")
    _, folder = lay(tmp_path, program, setup=(f". {tmp_path}/site.sh",))
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == code
    assert not (tmp_path / "dump").exists()
    files = run_files.load(str(folder))._replace(submission=Submission(queue="direct"))
    gone = judge(files, Liveness("gone", "its process ended"))
    assert gone[:2] == ("failed", "cluster.setup ended the job before it began; stderr.log says where")
    assert f"cluster.setup ended the job at `. {tmp_path}/site.sh`" in (folder / "attempts/1/stderr.log").read_text()
    assert judge(files, Liveness("gone", "preempted", "failed")).reason == "preempted"


def test_setup_may_leave_a_trap_for_the_end_of_the_job(tmp_path: Path, program: Path) -> None:
    _, folder = lay(tmp_path, program, setup=(f"trap 'touch {tmp_path}/cleaned' EXIT",))
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == 0
    assert (tmp_path / "cleaned").exists()
    assert store.read_or_empty(folder / "status.json")["state"] == "done"
