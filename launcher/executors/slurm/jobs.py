"""The Slurm job of a run, and the two questions about jobs that Slurm is asked. `shared` limits how often."""

from __future__ import annotations

import contextlib
import functools
import pwd
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
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
    "FAILED": "its script failed",
    "REVOKED": "another cluster took it",
    "LAUNCH_FAILED": "Slurm could not start it",
}
SUBMITS = "LAUNCHER_SUBMITS"
"""Environment variable of the launcher's sbatch: the file of its answer."""
LONGEST_ANSWER = 4096
"""Bytes of sbatch's answer that are read: a damaged record can name any file."""
_ANSWER = re.compile(r"([0-9]{1,19})(?:;.*)?\s*")
ACCOUNTS_PATIENCE = 20.0
"""Seconds in which sacct has to answer: whoever waits for it has squeue's answer by then."""
_FIELDS = ("JobID", "State", "ExitCode", "Reason", "SystemComment", "AdminComment", "Comment")
"""What is asked of sacct, as far as the sacct of this machine has it. A comment may hold the separator: it is last."""
_ELEMENTS = re.compile(r"([0-9]+)_\[([0-9,:-]+)(?:%[0-9]+)?(?:\.\.\.)?\]")
"""How sacct names the elements of an array that have not started, as `9_[0-2,4,10-20:2%3]`."""
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
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
    exit: str = ""
    """The job script's exit code and the signal that ended it, as `1:0` or `0:9`. This and what follows only sacct
    reports."""
    by: str = ""
    """Of a cancelled job: the number of the user who cancelled it."""
    comment: str = ""
    """What Slurm, an administrator or the user wrote about the job, the first of them that is there."""

    @property
    def lives(self) -> bool:
        """Whether the job runs or waits."""
        return self.state in WAITING or self.state in ACTIVE


def job_of(submission: Submission | None) -> str | None:
    """The id of a run's job, as `123` or `123_4`; None while sbatch hasn't written its answer, which so outlives a
    launcher that was killed in between."""
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
    rows = {}
    for line in done.stdout.splitlines():
        job, state, reason, script = [*line.split("|", 3), "", "", ""][:4]
        rows[job] = Row(state, reason, script)
    return rows


class Accounts(NamedTuple):
    """What the accounting says of jobs."""

    rows: Mapping[str, tuple[Row, ...]] = {}
    """A row for each time that the job ran or was queued, oldest first. A job that was requeued has several."""
    unanswered: frozenset[str] = frozenset()
    """Jobs of which nothing is known, because sacct failed. Any other job without rows is not in the accounting."""
    error: str = ""
    """How sacct failed."""


def accounted(wanted: Collection[str], conf: str | None) -> Accounts:
    """What the accounting says of jobs: nothing where the cluster keeps no accounts, as many small ones, or there is no
    sacct. Each question holds some of the jobs; one without an answer is the last, and leaves the answers before it."""
    if shutil.which("sacct") is None:  # the programs' folder is on the PATH by now: squeue was asked before
        return Accounts()
    of_base: dict[str, set[str]] = {}
    for job in wanted:
        of_base.setdefault(job.partition("_")[0], set()).add(job)
    bases, rows = sorted(of_base), dict[str, list[Row]]()
    for start in range(0, len(bases), 500):
        try:
            fields = _fields(conf)
            argv = ["--allocations", "--noheader", "--parsable2", "--duplicates", f"--format={','.join(fields)}"]
            text = _sacct(conf, *argv, f"--jobs={','.join(bases[start : start + 500])}")
        except _NoAccounts:
            break
        except Unavailable as error:
            unanswered = frozenset(job for base in bases[start:] for job in of_base[base])
            return Accounts({job: tuple(found) for job, found in rows.items()}, unanswered, str(error))
        for name, row in _accounted_rows(text, fields):
            for job in _named(name, of_base):
                rows.setdefault(job, []).append(row)
    return Accounts({job: tuple(found) for job, found in rows.items()})


class _NoAccounts(Exception):
    """The cluster keeps no accounts."""


def _sacct(conf: str | None, *words: str) -> str:
    """What sacct prints. Raises `_NoAccounts` and `Unavailable`."""
    done = call(["sacct", *words], conf=conf, timeout=ACCOUNTS_PATIENCE)
    if done.returncode == 0:
        return done.stdout
    if "accounting storage is disabled" in done.stderr:
        raise _NoAccounts
    raise Unavailable(f"sacct failed: {complaint(done)}")


@functools.cache
def _fields(conf: str | None) -> tuple[str, ...]:
    """Those of the fields that the sacct of this machine has. Raises `_NoAccounts` and `Unavailable`."""
    names = _sacct(conf, "--helpformat").split()
    return tuple(field for field in _FIELDS if field in names)


def _accounted_rows(text: str, fields: Collection[str]) -> Iterator[tuple[str, Row]]:
    for line in text.splitlines():
        values = dict(zip(fields, line.split("|", len(fields) - 1), strict=False))
        if not {"JobID", "State"} <= values.keys():
            continue
        state, _, by = values["State"].partition(" by ")  # `CANCELLED by 0`
        comments = (values.get(name, "") for name in ("SystemComment", "AdminComment", "Comment"))
        yield (
            values["JobID"],
            Row(
                state.partition(" ")[0].rstrip("+"),
                values.get("Reason", ""),
                exit=values.get("ExitCode", ""),
                by=by,
                comment=next(filter(None, comments), ""),
            ),
        )


def _named(name: str, wanted: Mapping[str, set[str]]) -> set[str]:
    """Those of the wanted jobs that a row of sacct is about. Elements of an array that have not started share one."""
    if (elements := _ELEMENTS.fullmatch(name)) is None:
        return {name} & wanted.get(name.partition("_")[0], set())
    ranges = []
    for first, last, step in _RANGE.findall(elements[2]):
        ranges.append(range(int(first), int(last or first) + 1, max(int(step or 1), 1)))
    of_array = wanted.get(elements[1], set())
    return {job for job in of_array if any(int(job.partition("_")[2] or -1) in part for part in ranges)}


def waits_for(row: Row) -> str:
    """Why a job waits, in words."""
    return _REASONS.get(row.reason, f"waiting: {row.reason}" if row.reason not in ("", "None") else "waiting")


def verdict(row: Row) -> str:
    """How a job ended, in words."""
    said = VERDICTS.get(row.state, f"Slurm calls it {row.state}")
    code, _, signal = row.exit.partition(":")
    if row.by:
        said += f" by {_user(row.by)}"
    elif row.state == "FAILED" and code:
        killed = signal not in ("", "0")
        said = f"its script was killed by signal {signal}" if killed else f"its script ended with exit code {code}"
    return f"{said}: {row.comment}" if row.comment else said


def _user(number: str) -> str:
    with contextlib.suppress(KeyError, ValueError, OverflowError):
        return pwd.getpwuid(int(number)).pw_name
    return f"user {number}"
