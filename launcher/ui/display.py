"""Progress of runs on a terminal, redrawn in place, or as plain lines where the output is no terminal."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TextIO

from launcher import units
from launcher.runs.states import State
from launcher.ui import summary, tables
from launcher.ui.progress import Progress
from launcher.ui.tables import Column

if TYPE_CHECKING:
    from rich.text import Text

LINE_EVERY = 15.0
"""Seconds between two plain lines about one run, whatever happens there."""
SILENCE = 60.0
"""Seconds without a step after which plain lines say so."""
LONG_AGO = 10.0
"""Seconds since a step from which on a line says how long ago it was."""
LINE_GAP = 5.0
"""Seconds between two plain lines about one run's epochs, however short they are."""


class Row(NamedTuple):
    """One run as it is shown."""

    label: str
    state: State
    progress: Progress


class Display(Protocol):
    """A place where runs are shown."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show the current states of the runs."""

    def say(self, text: str) -> None:
        """Show a message to the user."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


def for_stream(stream: TextIO) -> Display:
    """A live display for a terminal that can move its cursor, plain lines for anything else."""
    return Screen(stream) if moves_cursor(stream) else Lines(stream)


def moves_cursor(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Lines:
    """A line when a run's state changes, at its epochs, and every now and then; never a flood."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last: dict[str, tuple[float, Row]] = {}

    def show(self, rows: Sequence[Row]) -> None:
        now = self._clock()
        busy = sum(row.state.name == "running" for row in rows)
        for row in rows:
            when, before = self._last.get(row.label, (now, None))
            if row.state.finished and len(rows) == 1:
                continue  # the summary follows, and begins with how it ended
            state = row.state.name, row.state.attempt
            if before is None or (before.state.name, before.state.attempt) != state:
                self.say(f"{row.label}  {summary.headline(row.state, time.time())}")
            elif not _worth_a_line(before, row, now - when, max(1, busy)):
                continue
            else:
                self.say(f"{row.label}  {line(row.progress, time.time())}")
            self._last[row.label] = (now, row)

    def say(self, text: str) -> None:
        print(tables.clean(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing has to be undone."""


def _worth_a_line(before: Row, row: Row, seconds: float, busy: int) -> bool:
    if row.progress.step == before.progress.step:  # a line as often as the silence doubles
        silence = time.time() - row.progress.last if row.progress.last is not None else 0.0
        return row.state.name == "running" and silence >= SILENCE and seconds >= max(SILENCE, silence / 2)
    epoch = row.progress.epoch != before.progress.epoch or row.progress.accuracy != before.progress.accuracy
    return seconds >= (LINE_GAP if epoch else LINE_EVERY) * busy


def line(progress: Progress, now: float | None = None) -> str:
    """How far a run is, in one line; only what is known. `now`, in seconds since 1970, is for one that runs."""
    parts = [f"step {steps(progress)}"]
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch + 1}{f'/{progress.epochs}' if progress.epochs else ''}")
    if progress.samples_per_second is not None or progress.steps_per_second is not None:
        value, unit = rate(progress)
        parts.append(f"{units.number(value)} {unit}")
    if progress.loss is not None or "loss" in progress.nonfinite:
        parts.append(f"loss {loss(progress)}")
    if progress.loss_scale is not None:
        parts.append(f"scale {scale(progress)}")
    if progress.accuracy is not None:
        parts.append(f"accuracy {progress.accuracy:.4f}")
    if progress.memory_bytes is not None:
        parts.append(f"memory {units.size(progress.memory_bytes)}")
    if progress.seconds_left is not None:
        parts.append(f"{units.duration(progress.seconds_left)} left")
    if now is not None and (since := ago(progress, now)):
        parts.append(f"last step {since}")
    return "  ".join(parts)


def steps(progress: Progress) -> str:
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def ago(progress: Progress, now: float) -> str:
    """How long ago the last step ended; empty where that was just now."""
    silence = 0.0 if progress.last is None else now - progress.last
    return f"{units.duration(silence)} ago" if silence >= LONG_AGO else ""


def rate(progress: Progress) -> tuple[float | None, str]:
    """The throughput and its unit."""
    if progress.samples_per_second is None and progress.steps_per_second is not None:
        return progress.steps_per_second, "steps/s"
    return progress.samples_per_second, "tokens/s" if progress.of_tokens else "samples/s"


def loss(progress: Progress) -> str:
    return "not finite" if "loss" in progress.nonfinite else units.number(progress.loss)


def scale(progress: Progress) -> str:
    """The loss scale, and how many steps overflowed."""
    skipped = f" ({progress.skipped} skipped)" if progress.skipped else ""
    return f"{units.number(progress.loss_scale, 8)}{skipped}"


class Screen:
    """A table that is redrawn in place, one line a run."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._words = ""
        self._rows: Sequence[Row] = ()
        self._live.start()

    def close(self) -> None:
        self._live.stop()

    def show(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        if all(row.state.finished for row in rows):
            self._words = ""
        self._live.update(table(rows, self._console.width, self._console.height, self._words), refresh=True)

    def say(self, text: str) -> None:
        self._words = text
        self.show(self._rows)


_COLOURS = {"running": "green", "stopping": "yellow", "done": "bold green", "failed": "bold red", "lost": "bold red"}


SHORTEST = 11
"""Shortest length of a cut label; most names of runs are no longer."""
BAR = 16
_SPARE = ("skipped", "memory", "scale", "left", "loss", "tokens/s", "samples/s", "steps/s", "rate", "step")
"""Columns that a narrow terminal does without, the first one first: a figure is shown in full or not at all."""


def table(rows: Sequence[Row], width: int, height: int, words: str = "") -> Text:
    """The rows as a table that fits the terminal; what doesn't fit is counted below it."""
    from rich.text import Text

    shown = _those_that_fit(rows, max(1, height - 5))
    hidden = Counter(row.state.name for row in rows if row not in shown)
    notes = [f"and {', '.join(f'{count} {name}' for name, count in sorted(hidden.items()))}"] if hidden else []
    columns = _columns(shown)
    if sum(column.width + 2 for column in columns) > width:  # no room for bars
        columns = [column for column in columns if column.name]
    fitted = tables.fit(columns, width, _SPARE, cut_first=True, shortest=SHORTEST)
    drawn = Text("  ".join(column.name for column in fitted), style="bold", no_wrap=True)
    for number, row in enumerate(shown):
        drawn.append("\n")
        for column in fitted:
            colour = _COLOURS.get(row.state.name, "not bold") if column.name.strip() == "state" else "not bold"
            drawn.append(f"{column.cells[number]}  ", style=colour)
    for note in (*notes, words):
        drawn.append(f"\n{note}" if note else "", style="not bold")
    return drawn


def _columns(rows: Sequence[Row]) -> list[Column]:
    """All columns, that of the bars without a name."""
    progress_of, now = [row.progress for row in rows], time.time()
    unit, rates = units.rates([rate(progress) for progress in progress_of])
    figures = {
        "step": [steps(progress) if progress.step else "-" for progress in progress_of],
        unit: rates,
        "loss": [loss(progress) for progress in progress_of],
        "scale": [units.number(progress.loss_scale, 8) for progress in progress_of],
        "skipped": [str(progress.skipped) for progress in progress_of],
        "memory": [units.size(progress.memory_bytes) for progress in progress_of],
        "last step": [ago(row.progress, now) if row.state.name == "running" else "" for row in rows],
        "left": ["-" if row.state.finished else units.duration(row.progress.seconds_left) for row in rows],
    }
    if not any(progress.skipped for progress in progress_of):
        del figures["skipped"]
    if not any(figures["last step"]):
        del figures["last step"]
    return [
        Column("run", [row.label for row in rows]),
        Column("state", [row.state.name for row in rows]),
        Column("", [_bar(progress) for progress in progress_of]),
        *(Column(name, cells, right=True) for name, cells in figures.items()),
    ]


def _bar(progress: Progress) -> str:
    """How far a run is; empty for a script of unknown length."""
    share = min(1.0, progress.step / progress.total_steps) if progress.total_steps else 0.0
    return f"{'━' * round(BAR * share):{BAR}}"


def _those_that_fit(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` rows, in their order: running ones rather than waiting ones, and these rather than ended ones."""
    rank = {"running": 0, "stopping": 0, "unreachable": 1, "queued": 1}
    chosen = sorted(range(len(rows)), key=lambda index: (rank.get(rows[index].state.name, 2), index))[:count]
    return [rows[index] for index in sorted(chosen)]
