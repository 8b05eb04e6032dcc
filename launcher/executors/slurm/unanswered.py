"""Runs whose sbatch has not answered: it is still trying, was refused, or was killed; then the queue is searched."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from amp_launcher import records
from launcher.errors import Unavailable
from launcher.executors.slurm import jobs, shared
from launcher.executors.slurm.jobs import job_in, job_of
from launcher.executors.slurm.shared import Answer
from launcher.runs import processes, run_files, store
from launcher.runs.run_files import Files
from launcher.runs.schema import Submission
from launcher.runs.states import Liveness


def jobs_of(asked: Mapping[str, Files], conf: str | None) -> tuple[dict[str, str], dict[str, Liveness]]:
    """The job of each run, and the liveness of those that have none."""
    known: dict[str, str] = {}
    without: dict[str, Liveness] = {}
    groups: dict[str | None, list[str]] = {}  # that share the file of sbatch's answer, as the runs of an array do
    for folder, files in asked.items():
        if (job := job_of(files.submission)) is not None:
            known[folder] = job
        else:
            groups.setdefault(files.submitted.answer, []).append(folder)
    for folders in groups.values():
        submission, answer = asked[folders[0]].submitted, ""
        if run_files.is_refused(submission):
            liveness = Liveness("gone", "sbatch refused it")
        elif _still_submitting(submission):
            liveness = Liveness("unknown", "sbatch has not answered yet")
        else:
            liveness = Liveness("gone", "its launcher ended before Slurm had accepted it")
            try:
                answer = _answer_instead(submission, conf)
            except Unavailable as error:
                liveness = Liveness("unknown", str(error))
        for folder in folders:
            if (job := job_in(answer, asked[folder].submitted)) is not None:
                known[folder] = job
            else:
                without[folder] = liveness
    return known, without


def _still_submitting(submission: Submission) -> bool:
    """Whether the launcher or its sbatch may still be submitting it."""
    if submission.host != processes.host():
        return True
    launcher = processes.complete(submission.process)
    alive = launcher is not None and processes.is_alive(launcher)
    return alive or bool(processes.carrying(jobs.SUBMITS, {str(submission.answer)}))


_noted: dict[Path, float] = {}
"""When this process first noticed each, where that could not be noted in the folder."""


def _noticed(answer: Path) -> float:
    """When it was first noticed that sbatch ended without an answer, in seconds since 1970."""
    note = answer.with_suffix(".silent")
    try:
        return note.stat().st_mtime
    except OSError:
        now = _noted.setdefault(note, time.time())
        # Not with a disk that is full, or another person's: this process knows.
        with contextlib.suppress(OSError), open(note, "xb", opener=records.private) as file:
            os.utime(file.fileno(), (now, now))
        return now


def _answer_instead(submission: Submission, conf: str | None) -> str:
    """What a killed sbatch would have answered, which is written in its place; empty if Slurm did not accept the job.
    Raises `Unavailable`."""
    if submission.script is None or submission.answer is None:  # of a damaged record
        return ""
    answer = Path(submission.answer)
    with contextlib.suppress(OSError):  # it may have come meanwhile
        if text := answer.read_text(encoding="utf-8"):
            return text
    shown = shared.ask((), conf, signalled=(noticed := _noticed(answer)))
    if shown.error:
        raise Unavailable(shown.error)
    if shown.asked < noticed:  # Slurm was asked for another run this moment: too soon to ask again
        raise Unavailable("Slurm has not been asked yet whether it accepted the job")
    return found(submission.script, answer, shown)


def found(script: str, answer: Path, shown: Answer) -> str:
    """The job that was submitted with this script, which is written as sbatch's answer; empty if squeue lists none."""
    # A resumed run has the script of its submissions before.
    before = {job_of(Submission(answer=str(path))) for path in answer.parent.glob("sbatch.*.out")}
    new = shown.of_script(script) - before
    if shown.error or not new:
        return ""
    job = max(new, key=int)
    with contextlib.suppress(OSError):  # a disk that is full, or another person's: it will be asked again
        store.write_text(answer, f"{job}\n")
    return job
