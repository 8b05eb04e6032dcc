"""How far a run is, from the rows of its metrics.jsonl. Pure: rows in, a value out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from launcher.runs.decode import decode
from launcher.runs.schema import MetricsRow

RECENT = 200
"""Step rows read at once: of a longer backlog only the last ones and the events matter."""
_SMOOTH = 0.9
"""Weight of the past at each step in the rate that is shown."""


class Progress(NamedTuple):
    """A run's progress after the rows so far; None is unknown."""

    attempt: int = 0
    step: int = 0
    total_steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    nonfinite: tuple[str, ...] = ()
    """Values of the last step that were infinite or no number."""
    loss_scale: float | None = None
    skipped: int = 0
    """Steps skipped because of an overflow."""
    memory_bytes: float | None = None
    samples_per_second: float | None = None
    """Over the last steps, later ones weighing more."""
    of_tokens: bool = False
    """Whether that is tokens a second, of samples of text."""
    steps_per_second: float | None = None
    """The rate of a script whose samples per step are unknown."""
    seconds_left: float | None = None
    """At the pace of this attempt so far, evaluations and checkpoints included."""
    accuracy: float | None = None
    """Of the last evaluation."""
    last: float | None = None
    """When the last step ended, in seconds since 1970."""
    clock: tuple[int, float] | None = None
    """Step and time of this attempt's first row, from which its pace is taken."""
    recent: tuple[float, float] = (0.0, 0.0)
    """Samples and seconds of the last steps, smoothed."""
    recent_steps: tuple[float, float] = (0.0, 0.0)
    """Steps and seconds, likewise."""


def rows_of(lines: Iterable[bytes]) -> list[MetricsRow]:
    """The rows that matter in a backlog of lines: all events, and the last steps. A line that is no row is left out."""
    events: list[tuple[int, bytes]] = []
    steps: deque[tuple[int, bytes]] = deque(maxlen=RECENT)
    for numbered in enumerate(lines):
        (events if b'"event"' in numbered[1] else steps).append(numbered)
    return [decode(MetricsRow, row)[0] for _, line in sorted([*events, *steps]) if (row := json_row(line))]


def json_row(line: bytes) -> dict[str, Any]:
    """A line of metrics.jsonl; empty where it is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def advance(progress: Progress, rows: Iterable[MetricsRow]) -> Progress:
    """The progress after more rows."""
    for row in rows:
        event = row.event
        if event is None and row.step is not None:
            progress = _step(progress, row)
        elif event == "start":
            progress = _start(progress, row)
        elif event == "eval":
            progress = progress._replace(accuracy=row.accuracy)
    return progress


def _start(before: Progress, row: MetricsRow) -> Progress:
    resumed = row.resumed_from
    return Progress(
        attempt=row.attempt or before.attempt + 1,
        step=resumed or 0,
        total_steps=row.total_steps,
        epochs=row.epochs,
        epoch=before.epoch,
        skipped=before.skipped if resumed else 0,
        accuracy=before.accuracy if resumed else None,
    )


def _step(before: Progress, row: MetricsRow) -> Progress:
    step, now = row.step or 0, row.time
    clock = before.clock or ((step, now) if now is not None else None)
    seconds, rate = row.seconds, row.tokens_per_second or row.samples_per_second
    recent, steps = before.recent, before.recent_steps
    if seconds and rate:
        recent = (recent[0] * _SMOOTH + rate * seconds, recent[1] * _SMOOTH + seconds)
    if seconds and row.steps_per_second:
        steps = (steps[0] * _SMOOTH + 1, steps[1] * _SMOOTH + seconds)
    loss, nonfinite = row.loss, row.nonfinite
    if loss is None and "loss" not in nonfinite:  # a script may log it now and then
        loss, nonfinite = before.loss, before.nonfinite
    left = None
    if before.total_steps is not None and clock is not None and now is not None and step > clock[0]:
        left = max(0.0, (before.total_steps - step) * (now - clock[1]) / (step - clock[0]))
    return before._replace(
        step=step,
        epoch=row.epoch,
        loss=loss,
        nonfinite=nonfinite,
        loss_scale=row.loss_scale,
        skipped=row.skipped_total or 0,
        memory_bytes=row.memory_bytes,
        samples_per_second=recent[0] / recent[1] if recent[1] else None,
        of_tokens=row.tokens_per_second is not None,
        steps_per_second=steps[0] / steps[1] if steps[1] else None,
        seconds_left=left,
        last=now,
        clock=clock,
        recent=recent,
        recent_steps=steps,
    )
