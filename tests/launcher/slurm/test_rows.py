"""What Slurm's programs print: times, GPUs, answers of sbatch, rows of squeue and sacct."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import slurm_units
from launcher.executors.slurm import backend, jobs
from launcher.executors.slurm.jobs import Row, job_of
from launcher.executors.slurm.shared import Answer
from launcher.runs.run_files import Files
from launcher.runs.schema import Status, Submission
from launcher.runs.states import judge

TIMES = {90: "90 1:30:00", 1: "0:30", 30: "30:00", 31: "30:01", 1440: "24:00:00", 2880: "2-0", 3600: "2-12"}
TIMES |= {1470: "1-00:30", 1441: "1-00:00:01", None: "infinite UNLIMITED"}
GRES = {4: "gpu:4 gpu:a100:4(S:0-1) gpu:2080ti:4(S:0-1)", 6: "gpu:a100:4(S:0-1),gpu:v100:2 gpu:3090:2,gpu:a100:4"}
GRES |= {1: "gpu gpu:a100 fpga:2,gpu:1", 0: "shard:8 (null)"}


@pytest.mark.parametrize(("text", "minutes"), [(text, number) for number in TIMES for text in TIMES[number].split()])
def test_times_are_read_as_sbatch_reads_them(text: str, minutes: int | None) -> None:
    assert slurm_units.minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "x", "1h", "1:2:3:4", "-5", "1-", "1.5"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time as Slurm writes it"):
        slurm_units.minutes(text)


@pytest.mark.parametrize(("gres", "count"), [(text, number) for number in GRES for text in GRES[number].split()])
def test_gpus_are_counted_in_every_way_gres_is_written(gres: str, count: int) -> None:
    assert slurm_units.gpus(gres) == count


@pytest.mark.parametrize(
    ("answer", "index", "job"),
    [("123\n", None, "123"), ("123;testbed\n", None, "123"), ("123\n", 4, "123_4"), ("", None, None), ("x", 1, None)],
)
def test_a_job_is_known_by_what_sbatch_answered(tmp_path: Path, answer: str, index: int | None, job: str) -> None:
    (tmp_path / "answer").write_text(answer)
    assert job_of(Submission(answer=str(tmp_path / "answer"), array_index=index)) == job
    assert job_of(None) is job_of(Submission()) is None


SUBMITTED = Submission(queue="slurm", first_attempt=1)
RUNNING = Status(state="running", attempt=1)
INTERRUPTED = Status(state="interrupted", attempt=1, reason="ended by Slurm's signal", exit_code=143)


@pytest.mark.parametrize(
    ("row", "status", "name", "reason"),
    [
        (Row("PENDING", "Resources"), None, "queued", "waiting for free resources"),
        (Row("RUNNING", "None"), RUNNING, "running", ""),
        (Row("COMPLETING", "None"), RUNNING, "running", ""),
        (Row("SUSPENDED", "None"), RUNNING, "suspended", "scontrol resume"),
        (Row("STOPPED", "None"), None, "suspended", "scontrol resume"),
        (Row("PENDING", "BeginTime"), Status(state="requeued", attempt=1), "queued", "begin time"),
        (Row("PENDING", "Resources"), INTERRUPTED, "queued", "waiting for free resources"),
        (Row("OUT_OF_MEMORY", ""), RUNNING, "failed", "more memory than it had asked for"),
        (Row("OUT_OF_MEMORY", ""), INTERRUPTED, "failed", "more memory than it had asked for"),
        (Row("TIMEOUT", ""), INTERRUPTED, "failed", "reached its time limit"),
        (Row("NODE_FAIL", ""), RUNNING, "failed", "its node failed"),
        (Row("CANCELLED", ""), INTERRUPTED, "cancelled", "cancelled in Slurm"),
        (Row("CANCELLED", ""), None, "cancelled", "cancelled in Slurm"),
        (Row("FAILED", "NonZeroExitCode"), INTERRUPTED, "failed", "ended by Slurm's signal"),
        (Row("FAILED", ""), RUNNING, "failed", "its script was killed"),
        (Row("COMPLETED", ""), RUNNING, "lost", "job 7 ended"),
        (None, RUNNING, "lost", "Slurm no longer knows job 7"),
        (None, None, "lost", "it never started"),
    ],
)
def test_slurms_word_and_the_folders_word_make_one_state(
    row: Row | None, status: Status | None, name: str, reason: str
) -> None:
    state = judge(Files(submission=SUBMITTED, status=status), backend.judge("7", row))
    assert state.name == name
    assert reason in state.reason


def test_a_job_id_that_was_given_again_is_another_run() -> None:
    answer = Answer(held={"7": Row("RUNNING", "", "/new/run.sh")}, accounted={"8": (1.0, Row("COMPLETED", ""))})
    assert answer.row("7", "/old/run.sh") is None
    assert answer.row("7", "/new/run.sh") == answer.row("7") == Row("RUNNING", "", "/new/run.sh")
    assert answer.row("8", "/old/run.sh") == Row("COMPLETED", "")


def test_a_host_without_sacct_knows_no_accounts_and_is_asked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho '12|RUNNING|None|/runs/a/run.sh'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert jobs.listed(None) == {"12": Row("RUNNING", "None", "/runs/a/run.sh")}
    assert jobs.accounted(["13"], None) == jobs.Accounts()
