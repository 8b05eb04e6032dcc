"""The output of a run in the foreground: its lines scroll by, and on a terminal the last line is its progress."""

from __future__ import annotations

import codecs
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from launcher import admit, units
from launcher.errors import LauncherError
from launcher.executors import logs
from launcher.runs.log_pieces import Place
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ui import display, summary, tables
from launcher.ui.display import Lines, Row
from launcher.ui.overwritten import Overwritten
from launcher.ui.progress import Progress

AT_ONCE = 16
"""Pieces of a log that are copied before the state of the run is read again."""
_DIM, _RESET = "\x1b[2m", "\x1b[0m"


class OwnOutput:
    """Copies a run's stdout and stderr to ours. Progress is shown on a terminal only."""

    def __init__(self, folder: Path, out: TextIO, err: TextIO) -> None:
        self._source = logs.source(Run(str(folder.parent), folder.name))
        self._place: Place | None = None
        self._streams = (out, err)
        self._decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self._streams]
        self._lines = Lines(out)
        self._screen = LastLine(out) if display.moves_cursor(out) else None

    def __enter__(self) -> OwnOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen:
            self._screen.end()

    def show(self, rows: Sequence[Row]) -> None:
        (row,) = rows
        if not self._screen:
            self._lines.show([row._replace(progress=Progress())])  # the state only
        self._copy(row.state)
        if self._screen:
            self._screen.draw("" if row.state.finished else status(row))

    def say(self, text: str) -> None:
        if self._screen:
            self._screen.print([tables.clean(text)])
        else:
            self._lines.say(text)

    def _copy(self, state: State) -> None:
        """Copy new output of the run; all of it if the run has ended."""
        if self._place is None:
            if state.name == "queued":
                return  # the logs are those of an earlier attempt
            self._place = Place(max(1, state.attempt))
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
                self._place = Place(state.attempt)
            copied += 1

    def _write(self, number: int, content: bytes) -> None:
        stream = self._streams[number]
        if self._screen and stream.isatty():
            self._screen.feed(number, content)
            return
        if stream.isatty():
            content = admit.clean_log(self._decoders[number].decode(content).encode("utf-8", "replace"))
        stream.flush()
        stream.buffer.write(content)
        stream.flush()


class LastLine:
    """The last rows of a terminal: finished lines scroll by above those that still change and the status."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._printed = (Overwritten(), Overwritten())
        self._finished: list[str] = []
        self._below: list[str] = []
        """The rows below the finished lines, as they are on the terminal."""
        self._status = ""

    def feed(self, number: int, content: bytes) -> None:
        self._finished += self._printed[number].feed(content)

    def print(self, lines: Sequence[str]) -> None:
        self._finished += lines
        self.draw(self._status)

    def draw(self, status: str) -> None:
        """Bring the terminal up to date."""
        from rich.cells import set_cell_size

        self._status = status
        width, height = shutil.get_terminal_size()
        rows = [row for output in self._printed for row in output.unfinished()][-max(1, height - 2) :]
        rows += [status] if status else []
        below = [set_cell_size(tables.clean(row), width - 1).rstrip() for row in rows]
        if below == self._below and not self._finished:
            return
        up = f"\x1b[{len(self._below) - 1}A" if len(self._below) > 1 else ""
        erase = f"\r{up}\x1b[J" if self._below else ""
        shown = [*below[:-1], f"{_DIM}{below[-1]}{_RESET}"] if status else below
        self._stream.write(erase + "".join(f"{line}\n" for line in self._finished) + "\n".join(shown))
        self._stream.flush()
        self._finished, self._below = [], below

    def end(self) -> None:
        """Leave the printed lines on the terminal and remove the status."""
        self._finished += [line for output in self._printed for line in output.end()]
        self.draw("")


def status(row: Row) -> str:
    """A run's state, its known progress and its duration, in one line."""
    seconds = summary.elapsed(row.state, time.time())
    parts = [row.label, row.state.name if row.progress.step else display.state_of(row.state)]
    parts += [display.line(row.progress)] if row.progress.step else []
    parts += [units.duration(seconds)] if seconds is not None else []
    return "  ".join(parts)
