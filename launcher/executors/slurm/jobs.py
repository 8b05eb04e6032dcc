"""The Slurm job of a run, and the two questions about jobs that Slurm is asked. `shared` limits how often."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from launcher import safe_files
from launcher.errors import Unavailable
from launcher.probe.slurm_commands import call, complaint
from launcher.runs.schema import Submission

WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "CONFIGURING")
ACTIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
SUSPENDED = ("SUSPENDED", "STOPPED")
SUSPENDED_BY = "suspended in Slurm: by another job that goes first, or by an administrator (`scontrol resume`)"
# Slurm's verdicts in words. A plain exit code is explained by the run's status.json.
VERDICTS = {
    "OUT_OF_MEMORY": "it used more memory than it had asked for (cluster.mem)",
    "TIMEOUT": "it reached its time limit (cluster.time)",
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not start",
    "DEADLINE": "it could not end before its deadline",
    "PREEMPTED": "another job took its place",
    "CANCELLED": "it was cancelled in Slurm",
    "REVOKED": "another cluster took it",
    "LAUNCH_FAILED": "Slurm could not start it",
}
SUBMITS = "LAUNCHER_SUBMITS"
"""Environment variable of the launcher's sbatch: the file of its answer."""
LONGEST_ANSWER = 4096
"""Bytes of sbatch's answer that are read: a damaged record can name any file."""
_ANSWER = re.compile(r"([0-9]{1,19})(?:;.*)?\s*")
_REASONS = {
    "Resources": "waiting for free resources",
    "Priority": "waiting: others go first",
    "Dependency": "waiting for the run it comes after",
    "DependencyNeverSatisfied": "it can never start: the run it comes after did not end well",
    "BeginTime": "waiting for its begin time, as a requeued job does for two minutes",
    "JobArrayTaskLimit": "waiting: cluster.parallel runs are running",
    "QOSMaxJobsPerUserLimit": "waiting: you have as many jobs as you may",
    "JobHeldUser": "held by its user (`scontrol release` lets it go)",
    "JobHeldAdmin": "held by the cluster's administrators",
    "launch failed requeued held": "held, because Slurm could not start it (`scontrol release` has it tried again)",
    "AssocGrpGRES": "waiting: your account's GPUs are in use",
}


class Row(NamedTuple):
    """One job in Slurm's answer."""

    state: str
    reason: str
    script: str = ""
    """The submitted script, which only squeue reports."""

    @property
    def lives(self) -> bool:
        """Whether the job runs or waits."""
        return self.state in WAITING or self.state in ACTIVE


def job_of(submission: Submission | None) -> str | None:
    """The id of a run's job, as `123` or `123_4`; None while sbatch hasn't answered.

    The answer is a file that sbatch itself wrote, so that it outlives a launcher that was killed in between.
    """
    if submission is None or submission.answer is None:
        return None
    try:
        return job_in(safe_files.read_text(Path(submission.answer), LONGEST_ANSWER), submission)
    except (OSError, ValueError):  # the latter of a path that can be none
        return None


def job_in(answer: str, submission: Submission) -> str | None:
    """A run's job by sbatch's answer; None where it names none."""
    match = _ANSWER.fullmatch(answer)
    if match is None:
        return None
    index = submission.array_index
    return match[1] if index is None else f"{match[1]}_{index}"


def listed(conf: str | None) -> dict[str, Row]:
    """All jobs of the user that squeue lists, ended ones of the last minutes included. Raises `Unavailable`.

    A row of squeue wins over what sacct says, which lags and can call a job cancelled whose payload still runs.
    """
    # All of the user's jobs: naming thousands would cost more, and naming one that is gone is an error.
    done = call(["squeue", "--me", "--array", "--noheader", "--states=all", "--format=%i|%T|%r|%o"], conf=conf)
    if done.returncode != 0:
        raise Unavailable(f"squeue failed: {complaint(done)}")
    return _rows(done.stdout)


def accounted(jobs: Sequence[str], conf: str | None) -> dict[str, Row]:
    """What the accounting says of jobs that squeue does not list, without those that it does not know.

    None where the cluster keeps no accounts, as many small ones, or there is no sacct. Raises `Unavailable`.
    """
    rows: dict[str, Row] = {}
    if shutil.which("sacct") is None:  # the programs' folder is on the PATH by now: squeue was asked before
        return rows
    bases = sorted({job.partition("_")[0] for job in jobs})
    for start in range(0, len(bases), 500):
        argv = ["sacct", "--allocations", "--noheader", "--parsable2", "--array", "--duplicates"]
        done = call([*argv, "--format=JobID,State,Reason", f"--jobs={','.join(bases[start : start + 500])}"], conf=conf)
        if done.returncode != 0:
            return rows
        rows.update(_rows(done.stdout))  # of a requeued job's several rows, the last
    return rows


def _rows(text: str) -> dict[str, Row]:
    rows = {}
    for line in text.splitlines():
        job, state, reason, script = [*line.split("|", 3), "", "", ""][:4]
        # `CANCELLED by 0`, and `RUNNING+` where the column was cut.
        rows[job] = Row(state.partition(" ")[0].rstrip("+"), reason, script)
    return rows


def waits_for(row: Row) -> str:
    """Why a job waits, in words."""
    return _REASONS.get(row.reason, f"waiting: {row.reason}" if row.reason not in ("", "None") else "waiting")


def verdict(row: Row) -> str:
    """How a job ended, in words."""
    return VERDICTS.get(row.state, f"Slurm calls it {row.state}")
