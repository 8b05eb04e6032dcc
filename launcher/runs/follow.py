"""Reading files that grow, by byte offset: every byte once, and only complete lines."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launcher import admit, safe_files

CHUNK = 1 << 20


class Lines:
    """The new complete lines of a file at each call. A file that was truncated or replaced is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._seen = b""

    def read(self) -> tuple[bool, Iterator[bytes]]:
        """Whether the file starts over, and its new lines without line ends, to be consumed before the next call."""
        afresh = not self._continues()
        if afresh:
            self._offset, self._seen = 0, b""
        return afresh, self._new()

    def _continues(self) -> bool:
        """Whether the bytes before our place are still those that we read: a file that was cut back and has grown past
        our place since has others there."""
        if not self._seen:
            return True
        try:
            with open(self._path, "rb", opener=safe_files.regular) as stream:
                stream.seek(self._offset - len(self._seen))
                return stream.read(len(self._seen)) == self._seen
        except OSError:
            return False

    def _new(self) -> Iterator[bytes]:
        try:
            stream = open(self._path, "rb", opener=safe_files.regular)  # noqa: SIM115 (closed below)
        except OSError:
            return
        with stream:
            stream.seek(self._offset)
            rest = b""
            while chunk := stream.read(CHUNK):
                complete, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    self._offset += len(complete) + 1
                    self._seen = (complete + newline)[-256:]
                    yield from complete.split(b"\n")


def since(path: str | Path, offset: int, limit: int, *, whole_lines: bool) -> bytes:
    """What the file has from the offset on, so many bytes at most, up to its last whole line if asked.

    A carriage return ends a line too: progress bars write no other end before they are full. Of a line that is longer
    than the limit, so much of it is given.
    """
    try:
        with open(path, "rb", opener=safe_files.regular) as stream:
            stream.seek(offset)
            part = stream.read(limit)
    except FileNotFoundError:
        return b""
    if not whole_lines:
        return part
    end = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1
    return part if not end and len(part) == limit else part[:end]


def last_lines(path: Path, count: int) -> int:
    """The offset at which the last `count` lines of a file begin; reads no more than those."""
    if count <= 0:
        with contextlib.suppress(OSError):
            return os.path.getsize(path)
        return 0
    try:
        stream = open(path, "rb", opener=safe_files.regular)  # noqa: SIM115 (closed below)
    except OSError:
        return 0
    with stream:
        end = stream.seek(0, os.SEEK_END)
        # The end of the last line begins no other.
        place, missing = max(0, end - 1), count
        while place > 0:
            start = max(0, place - CHUNK)
            stream.seek(start)
            block = stream.read(place - start)
            at = len(block)
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                missing -= 1
                if not missing:
                    return start + at + 1
            place = start
        return 0


def tail(path: Path, count: int) -> list[str]:
    """The last lines of a log as text, each cut at 500 characters."""
    try:
        with open(path, "rb", opener=safe_files.regular) as stream:
            stream.seek(last_lines(path, count))
            return [line[:500] for line in stream.read(CHUNK).decode("utf-8", "replace").splitlines()[-count:]]
    except OSError:
        return []


class LastStep(NamedTuple):
    """The last step that a run is known to have taken."""

    number: int
    time: float | None = None
    """When it ended, in seconds since 1970; None where that is not known."""


def last_step(folder: str) -> LastStep | None:
    """The step in the last row of a run's metrics, or the one that it resumes from; None without either. Reads only the
    end of the file."""
    lines = tail(Path(folder, "metrics.jsonl"), 1)
    try:
        row = json.loads(lines[-1]) if lines else {}
        if "step" not in row:
            return LastStep(admit.whole(row["resumed_from"], "step"))
        ended = None if "event" in row or row.get("time") is None else admit.number(row["time"], "time")
        return LastStep(admit.whole(row["step"], "step"), ended)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
