"""What a run's folder says of its state: its small files, read together."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple, TypeVar

from launcher import safe_files
from launcher.runs import ownership
from launcher.runs.decode import decode
from launcher.runs.ownership import MINE, Owner
from launcher.runs.schema import Cancelled, Failed, ResultRecord, Status, Stopped, Submission
from launcher.runs.store import COPY, Damaged, read, read_json

T = TypeVar("T")
LONGEST_STOP = 200
"""Bytes of a request to stop that are read."""
_OF_SLURM = re.compile(r"attempt [0-9]+, ((?:time limit|preemption|signal TERM)(?:, [0-9]{1,6} s)?)")


class Files(NamedTuple):
    """What a run's folder says of its state."""

    submission: Submission | None = None
    status: Status | None = None
    stop: bool = False
    """STOP exists: someone asked the run to stop."""
    cancelled: bool = False
    """`cancel` was asked for."""
    saved: Stopped | None = None
    """Set where the attempt in status.json saved its state and stopped on request."""
    failure: str = ""
    """The trainer's own reason why the attempt in status.json failed, if it wrote one."""
    damaged: tuple[str, ...] = ()
    """Files that are there and can't be read."""
    exists: bool = True
    """The folder itself is there."""
    owner: Owner = MINE
    """Of the folder. Of another user's run the files are shown, and nothing else is done with them."""
    copied: bool = False
    """The folder was copied from another host, whose processes and queues it names."""
    copy_of: str = ""
    """The folder of this host that it was copied from, whose processes and queues it names."""
    killed: str = ""
    """Why `cancel` had to kill it, where it did not end by itself."""
    stop_why: str = ""
    """Why Slurm asked it to stop, and the seconds that are left, where it did."""

    @property
    def submitted(self) -> Submission:
        """The submission, with nothing in it where there was none."""
        return self.submission or Submission()


def load(folder: str) -> Files:
    """What the folder says now. Files are read in the order that makes a resubmission between them harmless.

    In a folder of the caller's, a record that another user wrote counts as damaged.
    """
    damaged = []
    root = os.path.dirname(folder)
    try:
        owner = ownership.of(folder, root)
    except (FileNotFoundError, NotADirectoryError):
        return Files(exists=False)
    except OSError as error:
        return Files(damaged=("its folder",), owner=Owner(False, "another user", f"{folder}: {error.strerror}"))
    own_in = root if owner.mine else None
    cancelled = os.path.exists(f"{folder}/cancelled")

    def read_own(cls: type[T], name: str, own_in: str | None = None) -> T | None:
        try:
            values = read_json(f"{folder}/{name}", own_in)
        except Damaged:
            damaged.append(name)
            return None
        return None if values is None else decode(cls, values)[0]

    stop = _stop(f"{folder}/STOP")
    # status.json first: it is the newer one only once the submission that it belongs to was written.
    status = read_own(Status, "status.json", own_in)
    submission = _moved(folder, read_own(Submission, "submission.json", own_in))
    if status is None and submission is None and _only_log(folder):
        return Files(exists=False)
    return Files(
        submission=submission,
        status=status,
        stop=stop is not None,
        stop_why=stop or "",
        cancelled=cancelled,
        saved=read_own(Stopped, f"attempts/{status.attempt}/stopped.json") if status and status.attempt else None,
        failure=_failure(folder, status) if status else "",
        damaged=tuple(damaged),
        owner=owner,
        copied=os.path.exists(f"{folder}/{COPY}"),
        copy_of=original(folder, submission) if submission and owner.mine else "",
        killed=read(Cancelled, f"{folder}/cancelled").killed or "" if cancelled else "",
    )


def _only_log(folder: str) -> bool:
    """Whether the folder is what Slurm, from 23.02 on, makes for the log of a job whose folder was deleted before."""
    try:
        return os.listdir(folder) == ["launch.log"]
    except OSError:
        return False


def _stop(path: str) -> str | None:
    """What a request to stop says behind its attempt, as `preemption, 60 s`; None where there is no request."""
    if not os.path.exists(path):
        return None
    try:
        text = safe_files.read_text(Path(path), LONGEST_STOP)
    except (OSError, ValueError):
        return ""
    match = _OF_SLURM.match(text)
    return match[1] if match else ""


def original(folder: str, submission: Submission) -> str:
    """The folder that this one is a copy of: it was submitted in another, which is still there. Empty for one that is
    where it was, or was moved."""
    place = submission.folder
    if place is None or place == folder or submission.id is None:
        return ""
    try:
        same = os.path.samefile(place, folder)
    except (OSError, ValueError):  # the latter of a path that can be none
        return ""
    return place if not same and read(Submission, f"{place}/submission.json").id == submission.id else ""


def is_refused(submission: Submission) -> bool:
    """Whether sbatch refused it."""
    return bool(submission.answer and os.path.exists(Path(submission.answer).with_suffix(".failed")))


def _moved(folder: str, submission: Submission | None) -> Submission | None:
    """A submission with the paths of what lay in its run root where that is now."""
    if submission is None or submission.folder in (None, folder):
        return submission
    before, now = os.path.dirname(str(submission.folder)), os.path.dirname(folder)

    def found(path: str | None) -> str | None:
        inside = path is not None and path.startswith(f"{before}/") and not os.path.exists(path)
        return f"{now}{path[len(before) :]}" if path and inside else path

    return submission._replace(answer=found(submission.answer), log=found(submission.log))


def _failure(folder: str, status: Status) -> str:
    if status.state != "failed":
        return ""
    result = read(ResultRecord, f"{folder}/result.json", ("status", "attempts", "reason"))
    if result.status == "failed" and result.attempts == status.attempt:
        return result.reason or ""
    # When a rank fails, torchrun kills the first one, which writes the result.
    return read(Failed, f"{folder}/attempts/{status.attempt}/failed.json").reason or ""
