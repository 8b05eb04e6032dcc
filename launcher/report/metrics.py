"""metrics.jsonl of any length to what a chart can show, in one pass and a bounded amount of memory.

Lines that are not complete rows are counted and left out: a file may be half written, cut by a full disk, or damaged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import safe_files
from launcher.runs.decode import LARGEST

POINTS = 480
"""The most points that a curve is drawn with: a chart is hardly a thousand pixels wide, and can be zoomed."""
NAMED = 8
"""The most parts of a loss, and figures that a script logged, that are read."""
LONGEST = 1 << 20
"""Bytes of a line: a row has hundreds."""

_DECODE = json.JSONDecoder().raw_decode
"""Without the searches for an encoding and for blanks that `json.loads` makes: they take as long as the rest of it."""


class Curve:
    """A curve of any number of points, kept as means over equal numbers of neighbours."""

    def __init__(self, limit: int = POINTS) -> None:
        self._limit = limit
        self._width = 1
        self._sums: list[tuple[float, float, int]] = []

    def add(self, x: float, y: float) -> None:
        if len(self._sums) == self._limit and self._sums[-1][2] == self._width:
            self._halve()
        if self._sums and self._sums[-1][2] < self._width:
            last = self._sums[-1]
            self._sums[-1] = (last[0] + x, last[1] + y, last[2] + 1)
        else:
            self._sums.append((x, y, 1))

    def points(self) -> tuple[tuple[float, float], ...]:
        """At most `limit` points, each the mean of as many that were added, the last of what was left."""
        return tuple((x / count, y / count) for x, y, count in self._sums)

    def _halve(self) -> None:
        pairs = zip(self._sums[::2], self._sums[1::2], strict=False)
        joined = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
        self._sums = joined + self._sums[len(joined) * 2 :]
        self._width *= 2


class Changes:
    """A quantity that seldom changes, as its points of change. Of too many every other pair is dropped, never the last
    point: of a loss scale that goes up and down in turns, every other point has the same value."""

    def __init__(self, limit: int = 4 * POINTS) -> None:
        self._limit = limit
        self._points: list[tuple[float, float]] = []
        self._end: tuple[float, float] | None = None

    def add(self, x: float, y: float) -> None:
        self._end = (x, y)
        if self._points and self._points[-1][1] == y:
            return
        if len(self._points) == self._limit:
            self._points = [point for index, point in enumerate(self._points) if index % 4 < 2]
        self._points.append((x, y))

    def points(self) -> tuple[tuple[float, float], ...]:
        if self._end is None or self._points[-1] == self._end:
            return tuple(self._points)
        return (*self._points, self._end)


@dataclass(kw_only=True, slots=True)
class Block:
    """A stretch of consecutive steps."""

    steps: int = 0
    samples: float = 0.0
    seconds: float = 0.0
    """Of the timed steps whose samples are known."""
    timed: int = 0
    timed_seconds: float = 0.0
    """Of all timed steps."""
    losses: int = 0
    loss_sum: float = 0.0
    """Of all its steps whose loss was finite."""
    ended: bool = False
    """Whether it has no more steps: a script can end before its block does."""

    @property
    def rate(self) -> float | None:
        """Samples a second over the timed steps; steps a second where their samples are unknown."""
        return _rate([self])

    @property
    def loss(self) -> float | None:
        """The mean over its steps."""
        return self.loss_sum / self.losses if self.losses else None


@dataclass(kw_only=True)
class Metrics:
    """What one metrics.jsonl holds."""

    steps: int = 0
    last_step: int = 0
    last_loss: float | None = None
    loss: Curve = field(default_factory=Curve)
    named: dict[str, Curve] = field(default_factory=dict)
    """The parts of the loss, where a recipe has several, such as those of a GAN's two networks."""
    logged: dict[str, Curve] = field(default_factory=dict)
    """What else a script logged, by name."""
    scale: Changes = field(default_factory=Changes)
    norm: Curve = field(default_factory=Curve)
    speed: Curve = field(default_factory=Curve)
    """Of the timed steps, in `unit`."""
    memory: Changes = field(default_factory=Changes)
    """Bytes, the most so far."""
    clock: Curve = field(default_factory=Curve)
    """When each step was taken, in seconds since 1970."""
    overflows: list[int] = field(default_factory=list)
    """Steps that were skipped, the first ones of many."""
    skipped: int = 0
    last_nonfinite: bool = False
    """Whether the loss of the last step was NaN or infinite."""
    nonfinite_at: int | None = None
    """The first step whose loss was NaN or infinite."""
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    """Steps and the held-out accuracy there."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """Where steps are counted in blocks: by number, from 0."""
    peak_memory: int | None = None
    """Bytes, in timed steps; of a script in all."""
    of_tokens: bool = False
    """Whether samples are text, and their tokens are counted instead."""
    problems: tuple[str, ...] = ()

    @property
    def rate(self) -> float | None:
        """Over all timed steps, in `unit`."""
        return _rate(self.blocks.values())

    @property
    def unit(self) -> str | None:
        if any(block.seconds for block in self.blocks.values()):
            return "tokens/s" if self.of_tokens else "samples/s"
        return "steps/s" if any(block.timed for block in self.blocks.values()) else None


def _rate(blocks: Collection[Block]) -> float | None:
    """Samples a second over the timed steps of the blocks; steps a second where no samples are known."""
    if seconds := sum(block.seconds for block in blocks):
        return sum(block.samples for block in blocks) / seconds
    seconds = sum(block.timed_seconds for block in blocks)
    return sum(block.timed for block in blocks) / seconds if seconds else None


def read(path: Path, block: int = 0) -> Metrics | None:
    """The file's complete rows; None without a file. `block` is the steps of a block, 0 for a single block."""
    metrics = Metrics()
    try:
        stream = open(path, "rb", opener=safe_files.regular)  # noqa: SIM115 (closed below)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        metrics.problems = (f"{path.name} can't be read: {error.strerror}",)
        return metrics
    with stream:
        damaged: list[int] = []
        torn = False
        try:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    torn = True
                elif not _add_line(metrics, line, block):
                    damaged.append(number)
        except OSError as error:
            metrics.problems = (f"{path.name} can't be read to its end: {error.strerror}",)
    metrics.problems += tuple(_problems(path.name, damaged, torn))
    return metrics


def _problems(name: str, damaged: list[int], torn: bool) -> Iterator[str]:
    if damaged:
        lines = f"line {damaged[0]}" if len(damaged) == 1 else f"{len(damaged)} lines, the first {damaged[0]},"
        yield f"{name}: {lines} can't be read and left out"
    if torn:
        yield f"{name}: its last line is half written and left out"


def _add_line(metrics: Metrics, line: bytes, block: int) -> bool:
    """Add one line, completely or not at all. Returns whether it is a row of metrics."""
    if len(line) > LONGEST:
        return False
    try:
        text = line.decode()
        row, end = _DECODE(text)
        if text[end:].strip():
            return False
        if "event" in row:
            _event(metrics, row)
        else:
            _step(metrics, row, block)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True


def _event(metrics: Metrics, row: dict[str, Any]) -> None:
    accuracy = _number(row.get("accuracy"))
    if row["event"] == "eval" and accuracy is not None and len(metrics.evaluations) < 4 * POINTS:
        metrics.evaluations.append((_integer(row["step"]), accuracy))
    if row["event"] == "end" and (number := row.get("block")) is not None:
        metrics.blocks.setdefault(_integer(number), Block()).ended = True


def _step(metrics: Metrics, row: dict[str, Any], block: int) -> None:
    # The whole row is checked before anything of it is added.
    step, loss = _integer(row["step"]), _number(row["loss"])
    seconds, rate = _number(row["seconds"]), _number(row.get("tokens_per_second", row["samples_per_second"]))
    by_step = "steps_per_second" in row  # a script's: its first step has no time, its samples may be unknown
    if (seconds is None or rate is None) and not by_step:
        raise ValueError(row)
    named, logged = _named(row.get("losses")), _named(row.get("logged"))
    scale, norm, memory = (
        _number(row.get("loss_scale")),
        _number(row.get("grad_norm")),
        _number(row.get("memory_bytes")),
    )
    time = _number(row.get("time"))
    metrics.steps += 1
    metrics.of_tokens = "tokens_per_second" in row
    metrics.last_step = step
    unknown = loss is None and by_step and "loss" not in row.get("nonfinite", ())
    if not unknown:
        metrics.last_loss = loss
        metrics.last_nonfinite = loss is None
    part = metrics.blocks.setdefault((step - 1) // block if block else 0, Block())
    part.steps += 1
    if loss is not None:
        metrics.loss.add(step, loss)
        part.losses += 1
        part.loss_sum += loss
    elif metrics.nonfinite_at is None and not unknown:
        metrics.nonfinite_at = step
    for name, value in named:
        if value is not None:
            metrics.named.setdefault(name, Curve()).add(step, value)
    for name, value in logged:
        if value is not None and (name in metrics.logged or len(metrics.logged) < NAMED):
            metrics.logged.setdefault(name, Curve()).add(step, value)
    if scale is not None:
        metrics.scale.add(step, scale)
    if norm is not None:
        metrics.norm.add(step, norm)
    if row.get("skipped"):
        metrics.skipped += 1
        if len(metrics.overflows) < POINTS:
            metrics.overflows.append(step)
    if time is not None:
        metrics.clock.add(step, time)
    if memory is not None:
        metrics.memory.add(step, memory)
    if memory is not None and (by_step or row.get("timed")) and memory > (metrics.peak_memory or 0):
        metrics.peak_memory = int(memory)
    if row.get("timed") and seconds is not None:
        speed = rate if rate is not None else 1 / seconds if seconds else None
        if speed is not None:
            metrics.speed.add(step, speed)
        part.timed += 1
        part.timed_seconds += seconds
        if rate is not None:
            part.samples += rate * seconds
            part.seconds += seconds


def _named(values: Any) -> list[tuple[str, float | None]]:
    return [(str(name), _number(value)) for name, value in list(values.items())[:NAMED]] if values else []


def _number(value: Any) -> float | None:
    """None for null, NaN and infinity. Raises `ValueError` unless it is a number that something can measure."""
    if value is None:
        return None
    if type(value) is float or type(value) is int:
        if -LARGEST < value < LARGEST:
            return value
        if value != value or value in (math.inf, -math.inf):
            return None
    raise ValueError(value)


def _integer(value: Any) -> int:
    """Raises `ValueError` unless it is a whole number."""
    if type(value) is int and -LARGEST < value < LARGEST:
        return value
    raise ValueError(value)
