"""Reading files that grow, by byte offset: nothing is read twice, and no line before it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20


class Lines:
    """The new whole lines of a file at each call. A file that was cut back or replaced is read again from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._seen = b""

    def read(self) -> tuple[bool, Iterator[bytes]]:
        """Whether all has to be taken in anew, and the lines without their ends, to be used up before the next call."""
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
            with open(self._path, "rb") as stream:
                stream.seek(self._offset - len(self._seen))
                return stream.read(len(self._seen)) == self._seen
        except OSError:
            return False

    def _new(self) -> Iterator[bytes]:
        try:
            stream = open(self._path, "rb")  # noqa: SIM115 (closed below)
        except OSError:
            return
        with stream:
            stream.seek(self._offset)
            rest = b""
            while chunk := stream.read(CHUNK):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    self._offset += len(whole) + 1
                    self._seen = (whole + newline)[-256:]
                    yield from whole.split(b"\n")


def copy(path: Path, offset: int, out: BinaryIO, *, whole_lines: bool) -> int:
    """Copy what the file has from the offset on, up to its last whole line if asked. Returns the new offset.

    A carriage return ends a line too: progress bars write no other end before they are full.
    """
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed below)
    except FileNotFoundError:
        return offset
    with stream:
        stream.seek(offset)
        while chunk := stream.read(CHUNK):
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1 if whole_lines else len(chunk)
            if not end and len(chunk) == CHUNK:
                end = CHUNK
            if not end:
                break
            out.write(chunk[:end])
            offset = stream.seek(offset + end)
        out.flush()
    return offset


def last_lines(path: Path, count: int) -> int:
    """The offset at which the last `count` lines of a file begin; reads no more than those."""
    if count <= 0:
        with contextlib.suppress(OSError):
            return os.path.getsize(path)
        return 0
    try:
        stream = open(path, "rb")  # noqa: SIM115 (closed below)
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
    """The last lines of a log as text, each cut at a width that a terminal can bear."""
    try:
        with open(path, "rb") as stream:
            stream.seek(last_lines(path, count))
            return [line[:500] for line in stream.read(CHUNK).decode("utf-8", "replace").splitlines()[-count:]]
    except OSError:
        return []
