"""Measures a user's script by the optimizer steps that its framework's hooks report, without waiting for the device.

Rows, rate and updates are those of the first optimizer that stepped.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from amp_launcher import metrics
from amp_launcher.around.attempt_rows import AttemptRows
from amp_launcher.around.block import Block, BlockOver
from amp_launcher.around.logged_values import LoggedValues
from amp_launcher.around.schedule import SPAN
from amp_launcher.around.step_timer import StepTimer
from amp_launcher.around.stepped_optimizers import SteppedOptimizers
from amp_launcher.job.logged import Logged
from amp_launcher.loop.divergence import Detector
from amp_launcher.run_folder import RunFolder

FLUSH_EVERY = 1.0
"""Seconds between two writes."""
NO_STEP = "no optimizer step was seen"
_UNKNOWN: dict[str, Any] = dict.fromkeys(metrics.STEP)
"""A row of which nothing is known."""
LOGGED = "job.log"
"""The counted thing where no optimizer steps are counted."""


class _Ended(NamedTuple):
    """Steps of the first optimizer that ended together."""

    now: float
    """By the meter's clock."""
    time: float
    """In seconds since 1970."""
    steps: int
    skipped: int
    loss_scale: float | None
    disturbed: bool


class StepMeter:
    """Counts the optimizer steps of one attempt, and writes their rows if it has a folder."""

    def __init__(
        self,
        folder: RunFolder | None,
        *,
        world_size: int = 1,
        detector: Detector | None = None,
        block: Block | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`detector` checks the logged losses. Raises `OSError` where metrics.jsonl can't be written.

        With a `block`, `stepped` raises `BlockOver` at its last step and at every later call.
        """
        self.disturbed: Callable[[], bool | None] = lambda: False
        """Whether something slows the steps down at the moment, such as an observer."""
        self.memory: Callable[[], int | None] = lambda: None
        """Peak memory so far, in bytes."""
        self.uncounted = ""
        """Why the steps can't be counted one by one; empty where they can."""
        self.skips_unknown = False
        """Whether steps may have been skipped without being reported."""
        self.total: int | None = None
        """The number of steps, where it is known and they were not counted one by one."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for the device, at the first and the last timed step of a block."""
        self.when_over: Callable[[], None] = lambda: None
        """Called once at the last step of a block."""
        self.over = False
        """Whether all steps of the block were taken."""
        self._block = block
        self._rows = AttemptRows(folder, world_size, block)
        self._logged = LoggedValues(detector)
        self._process = os.getpid()
        self._clock = clock
        self._lock = threading.RLock()
        self.optimizers = SteppedOptimizers()
        self._count = 0
        """Rows of this attempt."""
        self._shift = self._rows.before
        """The number of a step minus its count in this attempt."""
        self._skipped = self._rows.skipped_before
        self._unseen = 0
        """Skipped steps that were reported as applied."""
        self._timer = StepTimer()
        self._script_logs = False
        """Whether the script logs by itself, beside its library."""
        self._is_own = False
        """Whether the newest row is a logged step's, added before any step was counted."""
        self._flushed = clock()
        self._ended: deque[_Ended] = deque()
        """Steps that have no rows yet: between two steps the processor has forgotten how rows are made, so that each
        takes ten times as long as one of many."""

    @property
    def progress(self) -> Any:
        """What changes with each step that is counted or logged."""
        return self._count + len(self._ended), self._logged.last_step

    def stepped(
        self,
        optimizer: Any,
        applied: bool,
        *,
        loss_scale: float | None = None,
        count: int = 1,
        skipped: int = 0,
        name: str = "",
    ) -> None:
        """Count a step of this optimizer that has ended, or the `count` steps of one execution.

        `applied` is false for a step that was skipped because gradients overflowed; `skipped` is the number of such
        steps among `count`. `name` is the optimizer's name, by default its type's. Raises `Diverged` where a loss was
        logged before its step and is NaN or Inf for good.
        """
        if os.getpid() != self._process:
            return  # a process that the script forked
        if self.over:
            raise BlockOver
        with self._lock:
            if not self.optimizers.stepped(optimizer, count, name):
                return
            if self._block:
                self._wait_at_edge(count)
            now = self._clock()
            skipped = skipped if applied else count
            self._ended.append(_Ended(now, time.time(), count, skipped, loss_scale, bool(self.disturbed())))
            if self._block or self._logged.is_kept or now - self._flushed >= FLUSH_EVERY:
                self._add_ended()
                self._flush_if_due()
                self._end_block_if_due()

    def log(self, logged: Logged) -> None:
        """Add logged values to the row of their step. Where no steps are counted, each logged step gets a row.

        Raises `Diverged` where the loss is NaN or Inf for good.
        """
        if os.getpid() != self._process or self.over:
            return
        with self._lock:
            self._add_ended()
            if logged.by_library and self._script_logs:
                return
            self._script_logs |= not logged.by_library
            held_out = {**logged.held_out, **{name: logged.more[name] for name in ("accuracy",) if name in logged.more}}
            if held_out:
                self._rows.evaluated(logged.step, held_out)
            if self._counts_nothing:
                if logged.step != self._logged.last_step:
                    self._add_own(logged.step)
                self._join(logged)
                self._end_block_if_due()
            elif self._rows.newest is not None and self._logged.belongs_to_newest_row(logged.step):
                self._join(logged)
            else:
                self._logged.keep(logged)

    def finish(self, skipped: int = 0) -> None:
        """Complete the rows after the script has ended. `skipped` is the number of skipped steps that were reported as
        applied, because it was not known at that time."""
        with self._lock:
            self._add_ended()
            self._unseen = skipped
            newest, kept = self._rows.newest, self._logged.take_kept()
            if kept is not None and newest is not None:  # of a step that was never taken
                self._join(dataclasses.replace(kept, step=newest["step"], loss=newest["loss"], samples=None))
            self.flush(hold=False)
            if counts := self._timer.end():
                self._rows.rewrite(lambda at, row: {**row, "timed": counts[at]})

    def flush(self, *, hold: bool = True) -> None:
        """Write the buffered rows. With `hold`, the newest is kept back where values may still be added to it."""
        with self._lock:
            self._add_ended()
            self._flushed = self._clock()
            self._rows.write(self.memory(), hold=hold)

    def close(self) -> None:
        """Write the buffered rows. Another thread that reports a step from then on waits until the process ends."""
        self._lock.acquire()
        self.flush(hold=False)

    def end_block(self) -> None:
        """Record that the steps of this block are valid, even if the script ended before its last one."""
        if self._block:
            self._rows.block_ended(self._block.number)

    @property
    def block_problem(self) -> str | None:
        """Why a block of a comparison has no measured step; None if it has one, and outside a comparison."""
        if self._block is None or self._timer.timed:
            return None
        if not self.counted:
            return f"nothing can be compared: {self.uncounted or NO_STEP}"
        return "nothing can be compared: the script ended before a step after the warm-up was timed"

    @property
    def counted(self) -> str:
        """The name of what was counted, such as `AdamW, the first of 2 optimizers`; empty where nothing was."""
        if self._counts_nothing:
            return LOGGED if self._logged.any else ""
        return self.optimizers.name

    @property
    def steps(self) -> int | None:
        """Steps of all attempts; None where they can't be counted."""
        if self._logged.any and self._counts_nothing:
            return self._rows.summary.last_step
        return self.total if self.uncounted else self._rows.summary.steps

    @property
    def taken(self) -> int:
        """Steps of this attempt, of which some may not be written yet."""
        with self._lock:
            self._add_ended()
            return self._count

    @property
    def only_skipped(self) -> int:
        """The number of steps of the script's only optimizer if all of them were skipped; otherwise 0."""
        updates = self.result()["updates"]
        return updates["attempted"] if updates["applied"] == 0 and self.optimizers.count == 1 else 0

    @property
    def resumed(self) -> bool:
        """Whether an earlier attempt took more steps than are observed first. Each block of a comparison is new."""
        return self._block is None and self._rows.before > SPAN

    @property
    def before(self) -> int:
        """The steps of the run before the first one of this attempt."""
        return self._shift

    def result(self, earlier: str = "") -> dict[str, Any]:
        """The fields of `amp_launcher.result.Result` that are derived from steps. `earlier` is what earlier attempts
        counted, for one that counted nothing."""
        summary, steps = self._rows.summary, self.steps
        throughput = summary.throughput()
        if counted := self.counted or (summary.steps and not self.uncounted and earlier):
            throughput["counted"] = counted
        else:
            throughput = {"unit": None, "mean": None, "why": self.uncounted or NO_STEP}
        skipped = summary.skipped + self._unseen
        applied = None if steps is None or self.skips_unknown else steps - skipped
        return {
            "throughput": throughput,
            "loss": {"first": summary.first_loss, "last": summary.last_loss},
            "eval": summary.evaluation,
            "logged": summary.logged,
            "loss_scale": {"final": summary.loss_scale, "skipped_steps": skipped} if summary.loss_scale else {},
            "updates": {"attempted": steps, "applied": applied},
            "steps": steps,
        }

    def sentence(self) -> str:
        """The number of steps and their rate in one line, for people."""
        throughput = self.result()["throughput"]
        if not self.counted:
            return f"steps/s not known: {throughput['why']}"
        rate = "too few steps for a rate"
        if throughput["mean"] is not None:
            deciles = f"p10 {throughput['p10']:.4g}, p90 {throughput['p90']:.4g}"
            rate = f"{throughput['mean']:.4g} {throughput['unit']} ({deciles})"
        return f"{self.steps:,} steps of {self.counted}: {rate}"

    @property
    def _counts_nothing(self) -> bool:
        """Whether there are no counted steps, so that logged ones may take their place."""
        return bool(self.uncounted) or not self.optimizers.any

    def _add_ended(self) -> None:
        """Add rows for the steps that ended since the last call."""
        while self._ended:  # a signal's handler may add the rest
            self._add(self._ended.popleft())

    def _add(self, ended: _Ended) -> None:
        """Add rows for steps that ended together; the first `ended.skipped` of them were not applied."""
        count, skipped = ended.steps, ended.skipped
        self._timer.lap(ended.now, count, ended.disturbed)
        if self._block:
            count = min(count, self._block.steps - self._count)
        own = self._rows.newest if self._is_own else None
        self._is_own = False
        if own is not None:  # logged before the first step
            own.update(skipped=skipped > 0, loss_scale=ended.loss_scale)
            self._skipped += skipped > 0
        for index in range(own is not None, count):
            self._add_row(index < skipped, ended.loss_scale, ended.time)
        if (kept := self._logged.take_kept()) is not None:
            self._join(kept)

    def _add_own(self, step: int) -> None:
        """Add a row for a logged step, where no steps are counted."""
        last = self._logged.last_step
        covers = 1 if last is None else max(1, step - last)
        if self._block:
            self._wait_at_edge(covers)
        self._timer.lap(self._clock(), covers, bool(self.disturbed()))
        self._flush_if_due()
        self._add_row(False, None, time.time(), covers)
        self._is_own = True

    def _wait_at_edge(self, count: int) -> None:
        """Wait for the device if the first or last timed step of the block is among the `count` that end now."""
        assert self._block
        if any(self._count < edge <= self._count + count for edge in self._block.edges):
            self.wait()

    def _end_block_if_due(self) -> None:
        if self._block and self._count >= self._block.steps:
            self.over = True
            self.when_over()
            raise BlockOver

    def _flush_if_due(self) -> None:
        if self._clock() - self._flushed >= FLUSH_EVERY:
            self.flush()

    def _add_row(self, skipped: bool, loss_scale: float | None, at: float, covers: int = 1) -> None:
        """Add a row for a step, or for the last of the steps that it `covers`."""
        self._count += 1
        self._skipped += skipped
        seconds, timed = self._timer.seconds, self._timer.counts()
        self._logged.row_added(covers, seconds, timed)
        self._rows.add(
            {
                **_UNKNOWN,
                "step": self._shift + self._count,
                "seconds": seconds,
                "steps_per_second": None if seconds is None else 1 / seconds,
                "loss_scale": loss_scale,
                "skipped": skipped,
                "skipped_total": self._skipped,
                "timed": timed,
                "time": at,
            }
        )

    def _join(self, logged: Logged) -> None:
        """Add logged values to the newest row, which gets the script's own number of the step."""
        row = self._rows.newest
        assert row is not None
        shift = logged.step - self._count
        # With a smaller number the script counts something else, such as epochs. Steps of a block keep our numbers.
        if shift >= -1 and self._block is None:
            if shift != self._shift and not self._logged.any:
                self._renumber(shift)
            self._shift, row["step"] = shift, logged.step
        self._logged.join(row, logged)

    def _renumber(self, shift: int) -> None:
        """Give the steps of this attempt the script's numbers. Rows of the previous attempt with the same numbers are
        dropped: the script resumed from an older checkpoint and takes those steps again."""
        first = shift + 1
        if self._count > 1 or first <= self._rows.before:
            self._rows.rewrite(lambda at, row: {**row, "step": first + at}, first)
