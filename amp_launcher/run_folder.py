"""The trainer's part of a run folder: paths, and atomic writes.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from amp_launcher import records
from amp_launcher.world import preemption

PROOF = "proof"
"""What STOP says where a contradicted proof asks a script to stop."""
OVERDUE = "overdue"
"""A file of an attempt's folder: the script did not end in time after a request to stop, and was killed. It holds
the number of seconds that the script had."""

REQUEST, TIME_LIMIT, PREEMPTION, SIGNAL = "request", "time limit", "preemption", "signal TERM"
"""Why a run was asked to stop."""
_STOP = re.compile(rf"attempt [0-9]+(?:, ({TIME_LIMIT}|{PREEMPTION}|{SIGNAL}))?(?:, ([0-9]{{1,6}}) s)?")


class Superseded(RuntimeError):
    """The run folder belongs to a later attempt, or is gone: this attempt may not write."""


class StopRequest(NamedTuple):
    """Why a run was asked to stop, and the seconds that it has for that, where the request says so."""

    why: str = REQUEST
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFolder:
    """One run's folder, during one attempt (counted from 1)."""

    path: Path
    attempt: int

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stop(self) -> Path:
        """An empty file that anyone may create to ask the run to save and stop."""
        return self.path / "STOP"

    @property
    def stopped(self) -> Path:
        """The marker of a run that stopped on request: it names the checkpoint to resume from, and the reason."""
        return self.path / "attempts" / str(self.attempt) / "stopped.json"

    def stop_request(self) -> StopRequest:
        """Who or what asked this run to stop."""
        if not self.stop.exists():
            return StopRequest(SIGNAL if preemption.term_received() else REQUEST)
        match = _STOP.match(self._why())
        return StopRequest(match[1] or TIME_LIMIT, float(match[2]) if match[2] else None) if match else StopRequest()

    def create(self) -> None:
        """Make the folder, for its owner alone, if the launcher has not."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def check_ours(self) -> None:
        """Raise `Superseded` unless this attempt may write. Call it before every write.

        A scheduler that has lost sight of a node starts its jobs again elsewhere while they still run there. The script
        of the next attempt makes that attempt's folder before anything else.
        """
        following = self.path / "attempts" / str(self.attempt + 1)
        if following.exists():
            raise Superseded(f"attempt {self.attempt} ends without another word: {following} has taken over")
        if not self.path.is_dir():
            raise Superseded(f"the run folder {self.path} is gone")

    def mark_stopped(self, checkpoint: Path, step: int) -> None:
        """Record that the state of `step` is saved, that the run ends for it, and why."""
        self._mark(checkpoint=checkpoint.relative_to(self.path).as_posix(), step=step)
        self.stop.unlink(missing_ok=True)

    def mark_ended(self) -> None:
        """Record that a user's script ended because it was asked to; whether it saved is unknown. STOP is kept for the
        other ranks. It failed if its proof asked it to."""
        if not self._why().startswith(PROOF):
            self._mark(checkpoint=None, step=None, saved=False)

    def ask_to_stop(self) -> None:
        """Ask all ranks of a script to save and stop, since what they run is not the mode that was asked for."""
        if not self.stop.exists():
            self.stop.write_text(f"{PROOF}\n", encoding="utf-8")

    def _why(self) -> str:
        """The text of STOP. A person's is empty; the run script's own, for a time limit or a preemption, names its
        attempt."""
        try:
            return self.stop.read_text(encoding="utf-8")
        except OSError:
            return ""

    def _mark(self, **values: Any) -> None:
        self.check_ours()
        self.stopped.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.stopped, {"schema": 1, **values, "why": self.stop_request().why, "time": now()})


def first_failure(
    run: Path | None, rank: int, reason: str, environ: Mapping[str, str] = os.environ, trace: str = ""
) -> str:
    """Why the first process of this attempt failed: `reason` itself, where no other has said so before. `trace` is its
    traceback, which those of the others follow in the log.

    Later ones fail because that one has gone, or are killed before they can say anything: torchrun ends all others.
    """
    attempt = environ.get("LAUNCHER_ATTEMPT")
    own = f"on rank {rank}, {reason}" if rank else reason
    if run is None or not attempt or not (run / "attempts" / attempt).is_dir():
        return own
    first = run / "attempts" / attempt / "failed.json"
    aside = first.with_name(f".failed.json.{rank}")
    write_json(aside, {"schema": 1, "rank": rank, "reason": own, "trace": trace, "time": now()})
    try:
        os.link(aside, first)  # fails where it is there, which renaming would not
    except FileExistsError:
        own = str(json.loads(first.read_text())["reason"])
    except OSError:
        pass  # a file system without hard links: then nobody is the first
    aside.unlink()
    return own


def plan_file(run: Path, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The plan that holds for this attempt: the newest that a resume left in `attempts/N/plan.json`, else the first
    plan; None of a folder that no launcher made."""
    launched = environ.get("LAUNCHER_ATTEMPT")
    numbers = [number for number in _attempts(run) if not launched or number <= int(launched)]
    resumed = (run / "attempts" / str(number) / "plan.json" for number in sorted(numbers, reverse=True))
    return next((path for path in (*resumed, run / "plan.json") if path.exists()), None)


def next_attempt(run: Path | None, saved: int) -> int:
    """The number of an attempt that no launcher has numbered, after attempt `saved` wrote the newest checkpoint."""
    made = _attempts(run) if run else []
    return max([saved, *made]) + 1


def _attempts(run: Path) -> list[int]:
    """The numbers of the attempts that have a folder."""
    folder = run / "attempts"
    return [int(attempt.name) for attempt in folder.iterdir() if attempt.name.isdigit()] if folder.is_dir() else []


def now() -> str:
    """The time in UTC, to the second, as ISO 8601 spells it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write the file anew, and flush it to the disk. NaN and infinity raise `ValueError`: JSON has neither."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2, allow_nan=False) + "\n").encode())
    sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file written aside, which is flushed to the disk and takes the place of `path` unless writing fails."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), open(aside, "wb", opener=records.record) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to a system error that has none, such as a write to a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync_folder(path: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
