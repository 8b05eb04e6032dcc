"""Runs whose sbatch has not answered: it is still trying, was refused, or was killed; then the queue is searched."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.errors import Unavailable
from launcher.executors.slurm import jobs, shared
from launcher.executors.slurm.jobs import job_in, job_of
from launcher.runs import processes, store
from launcher.runs.schema import Submission
from launcher.runs.states import Liveness
from launcher.runs.store import Files


def jobs_of(asked: Mapping[str, Files], conf: str | None) -> dict[str, str | None]:
    """The job of each run; None where sbatch has not answered. Raises `Unavailable`."""
    names = {folder: job_of(files.submission) for folder, files in asked.items()}
    for group in silent(asked, names):
        submission = _submission(asked[group[0]])
        if not _refused(submission) and not _still_submitting(submission):
            answer = _answer_instead(submission, conf)
            names.update({folder: job_in(answer, _submission(asked[folder])) for folder in group})
    return names


def silent(asked: Mapping[str, Files], names: Mapping[str, str | None]) -> Collection[list[str]]:
    """The runs without a job, in groups that share the file of sbatch's answer, as the runs of an array do."""
    groups: dict[str | None, list[str]] = {}
    for folder, job in names.items():
        if job is None:
            groups.setdefault(_submission(asked[folder]).answer, []).append(folder)
    return groups.values()


def unanswered(files: Files) -> Liveness:
    """The liveness of a run without a job."""
    submission = _submission(files)
    if _refused(submission):
        return Liveness("gone", "sbatch refused it")
    if _still_submitting(submission):
        return Liveness("unknown", "sbatch has not answered yet")
    if job_of(submission) is not None:
        return Liveness("alive", "accepted this moment")  # between the look at its answer and that at its process
    return Liveness("gone", "its launcher ended before Slurm had accepted it")


def _submission(files: Files) -> Submission:
    return files.submission or Submission()


def _refused(submission: Submission) -> bool:
    return Path(str(submission.answer)).with_suffix(".failed").exists()


def _still_submitting(submission: Submission) -> bool:
    """Whether the launcher or its sbatch may still be submitting it."""
    if submission.host != processes.host():
        return True
    launcher = processes.complete(submission.process)
    alive = launcher is not None and processes.is_alive(launcher)
    return alive or bool(processes.carrying(jobs.SUBMITS, {str(submission.answer)}))


def _noticed(answer: Path) -> float:
    """When it was first noticed that sbatch ended without an answer, in seconds since 1970."""
    note = answer.with_suffix(".silent")
    try:
        return note.stat().st_mtime
    except OSError:
        now = time.time()
        with contextlib.suppress(OSError):  # a disk that is full, or another person's: Slurm will be asked again
            os.close(os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(note, (now, now))
        return now


def _answer_instead(submission: Submission, conf: str | None) -> str:
    """What a killed sbatch would have answered if Slurm accepted the job, which is written in its place.

    Empty if Slurm did not. Raises `Unavailable`.
    """
    script, answer = submission.script, Path(str(submission.answer))
    with contextlib.suppress(OSError):  # it may have come meanwhile
        if text := answer.read_text(encoding="utf-8"):
            return text
    # A resumed run has the script of its submissions before.
    before = {job_of(Submission(answer=str(path))) for path in answer.parent.glob("sbatch.*.out")}
    shown = shared.look((), conf, signalled=_noticed(answer))
    if shown.error:
        raise Unavailable(shown.error)
    new = shown.of_script(script) - before if script else set()
    if not new:
        return ""
    job = max(new, key=int)
    with contextlib.suppress(OSError):  # a disk that is full, or another person's: it will be asked again
        store.write_text(answer, f"{job}\n")
    return job
