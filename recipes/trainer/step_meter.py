"""metrics.jsonl of a user's script: a row for each optimizer step that its framework's hooks report.

Steps are counted for each optimizer apart, since a GAN has two and some scripts have one for each parameter. Rows, rate
and updates are those of the first optimizer that stepped. Times are the host's, from the end of one step to the end of
the next: nothing waits for the device.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipes import metrics
from recipes.metrics import MetricsWriter, warm_up
from recipes.run_folder import RunFolder, Superseded

FLUSH_EVERY = 1.0
"""Seconds between two writes."""
LONG = 50
"""Steps of an attempt from which on its warm-up has its full length."""
NO_STEP = "no optimizer step was seen"


class StepMeter:
    """Counts the optimizer steps of one attempt, and writes their rows if it has a folder."""

    def __init__(
        self, folder: RunFolder | None, *, world_size: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Raises `OSError` where metrics.jsonl can't be written."""
        self.disturbed: Callable[[], bool] = lambda: False
        """Whether something slows the steps down at the moment, such as an observer."""
        self.memory: Callable[[], int | None] = lambda: None
        """Peak bytes so far."""
        self.uncounted = ""
        """Why the steps can't be counted one by one; empty where they can."""
        self.total: int | None = None
        """How many there were, where that is known and they were not counted one by one."""
        self._folder = folder
        self._process = os.getpid()
        self._clock = clock
        self._lock = threading.RLock()
        self._optimizers: dict[int, _Optimizer] = {}
        self._first: _Optimizer | None = None
        self._several = 1
        """Optimizers that stepped."""
        self._rows: list[dict[str, Any]] = []
        """Not yet written."""
        self._early: list[tuple[dict[str, Any], bool]] = []
        """All of this attempt while it is short, and whether their time says anything of the speed after a warm-up."""
        self._count = 0
        self._ended: float | None = None
        """When the last step ended."""
        self._was_disturbed = False
        self._flushed = clock()
        path = folder.metrics if folder else None
        self._writer = MetricsWriter(path, path.stat().st_size if path and path.exists() else 0)
        self._offset = self._writer.offset()
        self._before = self._writer.summary.last_step or 0
        """Number of the last step of earlier attempts."""
        self._skipped = self._writer.summary.skipped
        self._start = {
            "event": "start",
            "attempt": folder.attempt if folder else 1,
            "total_steps": None,
            "epochs": None,
            "resumed_from": self._before or None,
            "world_size": world_size,
            "time": time.time(),
        }
        self._writer.append([self._start])

    def stepped(
        self, optimizer: Any, applied: bool, *, loss_scale: float | None = None, count: int = 1, name: str = ""
    ) -> None:
        """A step of this optimizer has ended, or `count` steps of one execution. One that was skipped, because
        gradients overflowed, is not `applied`. `name` is the optimizer's, by default its type's."""
        if os.getpid() != self._process:
            return  # a process that the script forked
        with self._lock:
            state = self._state_of(optimizer, name)
            state.attempted += count
            if state is self._first:
                self._add(applied, loss_scale, count)

    def attempted(self, optimizer: Any) -> int:
        """Steps of this optimizer so far."""
        state = self._optimizers.get(id(optimizer))
        return state.attempted if state is not None and state.optimizer() is optimizer else 0

    def is_counted(self, optimizer: Any) -> bool:
        """Whether rows are those of this optimizer."""
        return self._first is not None and self._first.optimizer() is optimizer

    def finish(self, skipped: int = 0) -> None:
        """The script has ended. `skipped` counts steps that were skipped and reported as applied, because it was not
        known at that time."""
        with self._lock:
            self._skipped += skipped
            self.flush()
            if 0 < self._count < LONG:
                self._shorten_warm_up()

    @property
    def counted(self) -> str:
        """What was counted, such as `AdamW, the first of 2 optimizers`; empty where nothing was."""
        if self._first is None or self.uncounted:
            return ""
        return f"{self._first.name}{f', the first of {self._several} optimizers' if self._several > 1 else ''}"

    @property
    def steps(self) -> int | None:
        """Through all attempts; None where they can't be counted."""
        return self.total if self.uncounted else self._writer.summary.steps

    def result(self) -> dict[str, Any]:
        """The fields of `recipes.result.Result` that steps are the source of."""
        summary, steps = self._writer.summary, self.steps
        throughput = summary.throughput()
        if self.uncounted or not self._count:
            throughput = {"unit": None, "mean": None, "why": self.uncounted or NO_STEP}
        else:
            throughput["counted"] = self.counted
        return {
            "throughput": throughput,
            "loss": {"first": summary.first_loss, "last": summary.last_loss},
            "loss_scale": {"final": summary.loss_scale, "skipped_steps": self._skipped} if summary.loss_scale else {},
            "updates": {"attempted": steps, "applied": None if steps is None else steps - self._skipped},
            "steps": steps,
        }

    def sentence(self) -> str:
        """The same for people, in one line."""
        found = self.result()["throughput"]
        if not self.counted:
            return f"steps/s not known: {found['why']}"
        rate = "too few steps for a rate"
        if found["mean"] is not None:
            rate = f"{found['mean']:.4g} {found['unit']} (p10 {found['p10']:.4g}, p90 {found['p90']:.4g})"
        return f"{self.steps:,} steps of {self.counted}: {rate}"

    def _state_of(self, optimizer: Any, name: str) -> _Optimizer:
        state = self._optimizers.get(id(optimizer))
        if state is None or state.optimizer() is not optimizer:
            state = self._optimizers[id(optimizer)] = _Optimizer(optimizer, name)
            if self._first is None or self._first.optimizer() is None:
                self._first = state  # the one before is gone, such as that of another fold
            else:
                self._several += 1
        return state

    def _add(self, applied: bool, loss_scale: float | None, count: int) -> None:
        now, disturbed = self._clock(), self.disturbed()
        seconds = None if self._ended is None else max(now - self._ended, 1e-9) / count
        timed = seconds is not None and not disturbed and not self._was_disturbed
        self._ended, self._was_disturbed = now, disturbed
        for _ in range(count):
            self._add_row(seconds, timed, applied, loss_scale)
        if now - self._flushed >= FLUSH_EVERY:
            self.flush()

    def _add_row(self, seconds: float | None, timed: bool, applied: bool, loss_scale: float | None) -> None:
        self._count += 1
        self._skipped += not applied
        row = {
            **dict.fromkeys(metrics.STEP),
            "step": self._before + self._count,
            "seconds": seconds,
            "steps_per_second": None if seconds is None else 1 / seconds,
            "loss_scale": loss_scale,
            "skipped": not applied,
            "skipped_total": self._skipped,
            "timed": timed and self._count > warm_up(LONG),
            "time": time.time(),
        }
        self._rows.append(row)
        if self._count < LONG:
            self._early.append((row, timed))
        else:
            self._early.clear()

    def flush(self) -> None:
        """Write the rows that wait."""
        with self._lock:
            self._flushed = self._clock()
            rows, self._rows = self._rows, []
            if rows:
                rows[-1]["memory_bytes"] = self.memory()
                self._write(rows)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        try:
            if self._folder:
                self._folder.check_ours()
        except Superseded:
            self._writer = MetricsWriter(None)  # the file belongs to a later attempt
        self._writer.append(rows)

    def _shorten_warm_up(self) -> None:
        """Time the steps of an attempt that turned out to be short from the end of its shorter warm-up on."""
        warm = warm_up(self._count)
        self._rewrite([{**row, "timed": timed and at >= warm} for at, (row, timed) in enumerate(self._early)])

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Replace the rows of this attempt."""
        path: Path | None = self._folder.metrics if self._folder else None
        self._writer = MetricsWriter(path, self._offset)
        self._write([self._start, *rows])


class _Optimizer:
    """One optimizer that stepped."""

    __slots__ = ("attempted", "name", "optimizer")

    def __init__(self, optimizer: Any, name: str) -> None:
        self.attempted = 0
        self.name = name or type(optimizer).__name__
        self.optimizer = weakref.ref(optimizer)
