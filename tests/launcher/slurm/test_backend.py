"""What a run's state is by the rows of squeue and sacct, which stand-ins print."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from launcher.executors import backends
from launcher.executors.slurm import backend, jobs
from launcher.runs import run_files, store
from launcher.runs.run_files import Files
from launcher.runs.schema import Submission
from launcher.runs.states import SILENT
from tests.launcher import run_folders
from tests.launcher.run_folders import SWEEP
from tests.launcher.slurm.counted import Programs, submitted

FIRST = "20260101-000000-red-crane"
RUNNING = {"state": "running"}
WAITS = f"waiting for {FIRST}, which it comes after"
CANCELLED = "it was cancelled in Slurm (job 7)"


@pytest.mark.parametrize(
    ("after", "first", "row", "reason"),
    [
        (FIRST, "running", "PENDING|Dependency", WAITS),
        (FIRST, "done", "PENDING|Dependency", WAITS),  # whose end Slurm may not have seen
        (FIRST, "running", "PENDING|Resources", "waiting for free resources"),
        (None, "running", "PENDING|Dependency", "waiting for the run it comes after"),
        (FIRST, "failed", "CANCELLED|Dependency", f"it never started: it was to come after {FIRST}, which failed"),
        (FIRST, "stopped", "CANCELLED|None", f"it never started: it was to come after {FIRST}, which is stopped"),
        (FIRST, "running", "CANCELLED|None", f"it never started: it was to come after {FIRST}, which left no status"),
        (FIRST, "done", "CANCELLED|None", CANCELLED),
        (f"any:{FIRST}", "failed", "CANCELLED|None", CANCELLED),
        (
            f"any:{FIRST}",
            None,
            "CANCELLED|None",
            f"{CANCELLED}; it was to come after {FIRST}, of which nothing is known here",
        ),
    ],
)
def test_a_run_that_comes_after_another_says_what_it_waits_for_or_why_it_never_started(
    root: Path, programs: Programs, after: str | None, first: str | None, row: str, reason: str
) -> None:
    folder = run_folders.finished(root, FIRST, state=first or "done")
    if first is None:
        shutil.rmtree(folder)
    job = submitted(root, plan={"schema": 1, "after": after})
    programs.says(f"7|{row}|{job.folder}/run.sh\n")
    assert job.look().reason == reason


def test_of_many_runs_that_it_waits_for_those_that_have_not_ended_are_named_and_no_more_than_a_few(
    root: Path, programs: Programs
) -> None:
    cells = run_folders.sweep(root, 6, state="running")
    store.write_json(cells[0] / "status.json", {**store.read_json(cells[0] / "status.json"), "state": "done"})
    job = submitted(root, plan={"schema": 1, "after": SWEEP})
    programs.says(job.row("PENDING", "Dependency"))
    named = ", ".join(cell.name for cell in cells[1:5])
    assert job.look().reason == f"waiting for {named} and 1 more, which it comes after"
    shutil.rmtree(cells[-1])
    assert job.look().reason == f"waiting for {named}, which it comes after"


@pytest.mark.parametrize(
    ("status", "row", "name", "reason"),
    [
        (None, "FAILED|3:0", "failed", f"{SILENT}; its script ended with exit code 3 (job 7)"),
        (RUNNING, "FAILED|0:9", "failed", "its script was killed by signal 9 (job 7)"),
        ({"state": "interrupted", "reason": "signal TERM"}, "FAILED|3:0", "failed", "signal TERM"),
        (RUNNING, "CANCELLED by 0|0:0", "cancelled", "it was cancelled in Slurm by root (job 7)"),
        (RUNNING, "CANCELLED by x|0:0|||low priority|", "cancelled", "by user x: low priority (job 7)"),
        (RUNNING, "PREEMPTED+|0:0||by root|not I|", "failed", "another job took its place: by root (job 7)"),
        (RUNNING, "EATEN|0:0", "failed", "Slurm calls it EATEN (job 7)"),
    ],
)
def test_how_a_job_ended_is_told_by_sacct_and_kept_when_slurm_forgets_it(
    root: Path, programs: Programs, status: dict[str, object] | None, row: str, name: str, reason: str
) -> None:
    job = submitted(root, status=status)
    os.utime(job.folder / "sbatch.1.out", (time.time() - 60,) * 2)
    programs.says("", f"6|COMPLETED|0:0\n7|RUNNING|0:0\n7|{row}\n")
    for _ in range(2):
        seen = job.look()
        assert (seen.name, seen.reason.endswith(reason)) == (name, True), seen
        shutil.rmtree(os.environ["XDG_STATE_HOME"])
        programs.says()


def test_a_job_that_slurm_killed_over_its_memory_is_known_by_the_end_of_its_log(root: Path, programs: Programs) -> None:
    job, log = submitted(root, status=RUNNING), root / "launch.log"
    record = store.read_json(job.folder / "submission.json")
    store.write_json(job.folder / "submission.json", {**record, "log": str(log)})
    programs.says(job.row("FAILED", "NonZeroExitCode"))
    assert "memory" not in job.look().reason
    for text, found in (("Exceeded job memory limit" + "." * 4096, False), ("." * 4096 + "oom-kill", True)):
        log.write_text(text)
        assert ("more memory than it had asked for" in job.look().reason) is found


def test_while_sacct_fails_the_end_of_a_job_is_unknown(root: Path, programs: Programs) -> None:
    job = submitted(root, status=RUNNING)
    programs.says("")
    programs.does("sacct", "exit 1")
    seen = job.look()
    assert seen.name == "unreachable"
    assert seen.reason == "squeue no longer lists job 7, and how it ended is not known: sacct failed: exit code 1"


def test_sacct_names_the_elements_of_an_array_that_never_started_together(programs: Programs) -> None:
    programs.says("", "7_[0-2,5,10-20:5%2]|CANCELLED by 0|0:0\n7_3|FAILED|1:0\n8_[1...]|PENDING|0:0\n8|PENDING|0:0\n")
    wanted = {f"7_{index}" for index in (0, 2, 3, 4, 5, 10, 11, 20, 21)}
    rows = jobs.accounted({*wanted, "7", "8_1"}, None).rows
    states = {job: found[-1].state for job, found in rows.items()}
    assert states == dict.fromkeys(("7_0", "7_2", "7_5", "7_10", "7_20"), "CANCELLED") | {
        "7_3": "FAILED",
        "8_1": "PENDING",
    }


def test_a_waiting_job_says_why_in_words_or_as_slurm_does() -> None:
    for reason, words in (("Priority", "waiting: others go first"), ("Odd", "waiting: Odd"), ("None", "waiting")):
        assert jobs.waits_for(jobs.Row("PENDING", reason)) == words


def test_many_jobs_are_cancelled_in_parts_and_a_failure_is_that_of_its_part(tmp_path: Path, programs: Programs) -> None:
    (tmp_path / "answer").write_text("7\n")
    asked = {
        f"/runs/{index}": Files(
            submission=Submission(queue="slurm", answer=str(tmp_path / "answer"), array_index=index)
        )
        for index in range(501)
    }
    assert backend.end(asked, 0) == {}
    assert programs.count("scancel") == 2
    programs.does("scancel", "[ $# -gt 2 ] || { echo 'scancel: error: no' >&2; exit 1; }")
    failed = backend.end(asked, 0)
    assert list(failed.values()) == ["scancel failed: no"]


def test_a_job_that_nobody_knows_is_not_cancelled_and_said_so(root: Path, programs: Programs) -> None:
    job = submitted(root)
    (job.folder / "sbatch.1.out").unlink()
    (job.folder / "sbatch.1.failed").touch()
    files = run_files.load(str(job.folder))
    assert backends.end({str(job.folder): files}, 0) == {str(job.folder): "nobody knows its job: sbatch refused it"}
    assert programs.count("scancel") == 0
