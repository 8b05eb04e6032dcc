"""The output of a run in the foreground: a copy of what it prints, with its progress below on a terminal."""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from launcher import admit, units
from launcher.errors import LauncherError
from launcher.executors import logs
from launcher.runs.log_pieces import LogOffset
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ui import display, summary, tables
from launcher.ui.display import Lines, Row
from launcher.ui.progress import Progress

AT_ONCE = 16
"""Pieces of a log that are copied before the state of the run is read again."""
# SGR, erase in line and in page (ECMA-48); autowrap, save and restore the cursor with its colours (DEC)
_DIM, _RESET, _ERASE, _ERASE_BELOW = "\x1b[2m", "\x1b[0m", "\x1b[K", "\x1b[J"
_NO_WRAP, _WRAP, _SAVE, _RESTORE = "\x1b[?7l", "\x1b[?7h", "\x1b7", "\x1b8"
_INCOMPLETE = re.compile(r"\x1b(?:\[[0-9;]*)?\Z")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class OwnOutput:
    """Copies a run's stdout and stderr to ours.

    On a terminal a line below says how far the run is. It is away while the run's own last line isn't finished, as that
    of a progress bar, so that the run's cursor movements do what they do without us.
    """

    def __init__(self, folder: Path, out: TextIO, err: TextIO) -> None:
        self._source = logs.source(Run(str(folder.parent), folder.name))
        self._place: LogOffset | None = None
        self._streams = (out, err)
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self._streams]
        self._rests = ["", ""]
        """Of each stream an incomplete control sequence at the end of the last piece."""
        self._lines = Lines(out)
        self._on_terminal = display.moves_cursor(out)
        self._unfinished: int | None = None
        """The stream whose last line has no end yet."""
        self._status = ""
        """The line below the output, as it is on the terminal."""

    def close(self) -> None:
        if self._on_terminal:
            self._print(_RESET)

    def show(self, rows: Sequence[Row]) -> None:
        (row,) = rows
        if not self._on_terminal:
            self._lines.show([row._replace(progress=Progress())])  # the state only
        self._copy(row.state)
        if self._on_terminal and self._unfinished is None:
            self._draw("" if row.state.finished else tables.clean(status(row)))

    def say(self, text: str) -> None:
        if self._on_terminal:
            self._print(f"{tables.clean(text)}\n")
        else:
            self._lines.say(text)

    def _print(self, text: str) -> None:
        """Print words of ours on lines of their own, in place of bars that the run drew below its cursor."""
        self._draw("")
        end_of_line = "" if self._unfinished is None else "\n"
        self._streams[0].write(f"{end_of_line}{_ERASE_BELOW}{text}")
        self._streams[0].flush()
        self._unfinished = None

    def _draw(self, status: str) -> None:
        """Draw the status in the terminal's last row; once erased, the output continues there."""
        if status == self._status:
            return
        # A wrapped status would take two rows, and only one would be erased.
        drawn = f"{_NO_WRAP}{_DIM}{status}" if status else ""
        self._streams[0].write(f"\r{_SAVE}{_RESET}{_ERASE}{drawn}{_RESTORE}{_WRAP}")
        self._streams[0].flush()
        self._status = status

    def _copy(self, state: State) -> None:
        """Copy new output of the run; all of it if the run has ended."""
        if self._place is None:
            if state.name == "queued":
                return  # the logs are those of an earlier attempt
            self._place = LogOffset(max(1, state.attempt))
        copied = 0
        while copied < AT_ONCE or state.finished:
            try:
                piece = self._source(self._place, attempt=self._place.attempt, lines=None, following=False)
            except LauncherError:
                return  # its host can't be reached now; its state says so
            for number, text in enumerate(piece.texts):
                if text:
                    self._write(number, text)
            self._place = piece.place
            if not piece.more:
                if state.attempt <= self._place.attempt:
                    return
                self._place = LogOffset(state.attempt)
            copied += 1

    def _write(self, number: int, content: bytes) -> None:
        stream = self._streams[number]
        if stream.isatty():
            text = self._rests[number] + self._decoders[number].decode(content)
            rest = _INCOMPLETE.search(text)
            self._rests[number] = rest[0] if rest else ""
            text = text.removesuffix(self._rests[number])
            if not text:
                return
            content = admit.clean_log(text.encode("utf-8", "replace"))
            if self._on_terminal:
                self._draw("")
                if printed := _COLOUR.sub("", content.decode()):
                    # Which stream printed first is not known: the other one's bar may have been finished by then.
                    if self._unfinished not in (None, number):
                        self._print("")
                    self._unfinished = None if printed.endswith("\n") else number
        stream.flush()
        stream.buffer.write(content)
        stream.flush()


def status(row: Row) -> str:
    """A run's state, its known progress and its duration, in one line."""
    now = time.time()
    seconds = summary.elapsed(row.state, now)
    parts = [row.label, row.state.name if row.progress.step else summary.headline(row.state, now)]
    parts += [display.line(row.progress, now)] if row.progress.step else []
    parts += [units.duration(seconds)] if seconds is not None else []
    return "  ".join(parts)
