"""What a user's script is measured by: the optimizer steps that its framework's hooks report, and what it logs.

Steps are counted for each optimizer apart, since a GAN has two and some scripts have one for each parameter. Rows, rate
and updates are those of the first optimizer that stepped. Times are the host's, from the end of one step to the end of
the next: nothing waits for the device.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from recipes import metrics
from recipes.divergence import Detector
from recipes.metrics import warm_up
from recipes.run_folder import RunFolder
from recipes.script_log import Logged
from recipes.trainer.attempt_rows import AttemptRows, Row
from recipes.trainer.block import Block, BlockOver
from recipes.trainer.library_records import Records

FLUSH_EVERY = 1.0
"""Seconds between two writes."""
LONG = 50
"""Steps of an attempt from which on its warm-up has its full length."""
NO_STEP = "no optimizer step was seen"
LOGGED = "job.log"
"""What is counted where no optimizer step is."""
KNOWN = ("lr", "grad_norm")
"""Keys of a recipe's rows that a script may log too."""


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
        """`detector` checks what is logged. Raises `OSError` where metrics.jsonl can't be written.

        Of a `block`, `stepped` raises `BlockOver` at its last step and whenever it is called after that.
        """
        self.disturbed: Callable[[], bool] = lambda: False
        """Whether something slows the steps down at the moment, such as an observer."""
        self.memory: Callable[[], int | None] = lambda: None
        """Peak bytes so far."""
        self.uncounted = ""
        """Why the steps can't be counted one by one; empty where they can."""
        self.skips_unknown = False
        """Steps may have been skipped, and nothing tells which."""
        self.awaits_loss = False
        """The framework tells the loss of a step after it: its row isn't written before."""
        self.total: int | None = None
        """How many there were, where that is known and they were not counted one by one."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for the device: where the timed steps of a block begin, and where they end."""
        self.when_over: Callable[[], None] = lambda: None
        """Called once at the last step of a block."""
        self.over = False
        """Whether the steps of the block were taken."""
        self.timed = 0
        """Steps of this attempt whose time says anything of the speed."""
        self._block = block
        self._rows = AttemptRows(folder, world_size, block)
        self._detector = detector
        self._process = os.getpid()
        self._clock = clock
        self._lock = threading.RLock()
        self._optimizers: dict[int, _Optimizer] = {}
        self._first: _Optimizer | None = None
        self._several = 1
        """Optimizers that stepped."""
        self._count = 0
        """Rows of this attempt."""
        self._shift = self._rows.before
        """Number of a step less its count."""
        self._skipped = self._rows.skipped_before
        self._unseen = 0
        """Skipped steps among those that were reported as applied."""
        self._ended: float | None = None
        """When the last step ended."""
        self._was_disturbed = False
        self._steady: list[bool] = []
        """Of the first steps, whether their time says anything of the speed once the warm-up is over."""
        self._early: Logged | None = None
        """Logged before its step was counted."""
        self._is_logged = False
        """The newest row has what was logged of it."""
        self._is_own = False
        """The newest row was logged, and no step was counted before it."""
        self._logged_step: int | None = None
        """The script's number of the step that it logged last."""
        self._unlogged = _Stretch()
        """The steps since the last one that was logged."""
        self._flushed = clock()

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
        """A step of this optimizer has ended, or `count` steps of one execution. One that was skipped, because
        gradients overflowed, is not `applied`; of several, `skipped` were not. `name` is the optimizer's, by default
        its type's.

        Raises `Diverged` where a loss was logged before its step and is NaN or Inf for good.
        """
        if os.getpid() != self._process:
            return  # a process that the script forked
        if self.over:
            raise BlockOver
        with self._lock:
            state = self._state_of(optimizer, name)
            state.attempted += count
            if state is self._first:
                self._add(count, skipped=skipped if applied else count, loss_scale=loss_scale)
                self._end_block_if_due()

    def attempted(self, optimizer: Any) -> int:
        """Steps of this optimizer so far."""
        state = self._optimizers.get(id(optimizer))
        return state.attempted if state is not None and state.optimizer() is optimizer else 0

    def is_counted(self, optimizer: Any) -> bool:
        """Whether rows are those of this optimizer."""
        return self._first is not None and self._first.optimizer() is optimizer

    def log(self, logged: Logged) -> None:
        """Add what the script logged to the row of its step. Where no step is counted it becomes a row of its own.

        Raises `Diverged` where the loss is NaN or Inf for good.
        """
        if os.getpid() != self._process or self.over:
            return
        with self._lock:
            if "accuracy" in logged.more:
                self._rows.evaluated(logged.step, {"accuracy": logged.more["accuracy"]})
            again = logged.step == self._logged_step
            if self._first is None or self.uncounted:
                if not again:
                    self._add_own(logged.step)
                self._merge(logged)
                self._end_block_if_due()
            elif self._rows.newest is not None and (again or not self._is_logged):
                self._merge(logged)
            else:
                self._early = _joined(self._early, logged)

    def seen(self, loss: float) -> None:
        """The framework has told the loss of the newest step. What the script logs of it comes first."""
        with self._lock:
            newest = self._rows.newest
            if newest is not None and newest["loss"] is None:
                newest["loss"] = loss

    def evaluated(self, measures: Mapping[str, float]) -> None:
        """The framework has told the held-out `accuracy` or `loss`."""
        with self._lock:
            self._rows.evaluated(self._shift + self._count, measures)

    def adopt(self, records: Records) -> None:
        """Add what a library recorded of this attempt's steps. Of a script that logs itself nothing is added.

        The library's number of a step is found by what it saved, since it may have gone on from an older checkpoint.
        """
        with self._lock:
            if self._has_logged or self._first is None or self.uncounted:
                return
            self.flush(hold=False)
            if self._block is not None:
                shift = 0  # it began afresh
            elif records.saved is not None and records.saved[0] == self._rows.before + self._count:
                shift = self._rows.before  # the last step was saved: no clock is needed
            elif records.saved is not None:
                shift = records.saved[0] - self._rows.ended_by(records.saved[1])
            elif self._rows.before == 0:
                shift = 0
            else:
                return
            if self._block is not None or shift < 0:  # as after another Trainer in the same script
                self._rows.rewrite(lambda at, row: _completed(row, row["step"], records.steps.get(at + 1 + shift, {})))
                return
            first = shift + 1
            self._rows.rewrite(lambda at, row: _completed(row, first + at, records.steps.get(first + at, {})), first)
            self._shift = shift
            for step, measures in records.evaluations:
                if step > shift:
                    self._rows.evaluated(step, measures)

    def finish(self, skipped: int = 0) -> None:
        """The script has ended. `skipped` counts steps that were skipped and reported as applied, because it was not
        known at that time."""
        with self._lock:
            self._unseen = skipped
            newest = self._rows.newest
            if self._early is not None and newest is not None:  # of a step that was never taken
                self._merge(dataclasses.replace(self._early, step=newest["step"], loss=newest["loss"], samples=None))
            self.flush(hold=False)
            if 0 < self._count < LONG:
                warm = warm_up(self._count)
                self.timed = sum(self._steady[warm:])
                self._rows.rewrite(lambda at, row: {**row, "timed": at >= warm and self._steady[at]})

    def flush(self, *, hold: bool = True) -> None:
        """Write the rows that wait. The newest is on `hold` where more may be said of it."""
        with self._lock:
            self._flushed = self._clock()
            more = self.awaits_loss or self._has_logged or "recipes.job" in sys.modules
            self._rows.write(self.memory(), hold=hold and more)

    def close(self) -> None:
        """Write the rows that wait, and let no other thread add one: it waits until the process ends."""
        self._lock.acquire()
        self.flush(hold=False)

    def end_block(self) -> None:
        """The steps of this block count, even if the script ended before its last one."""
        if self._block:
            self._rows.block_ended(self._block.number)

    @property
    def in_block(self) -> bool:
        """Whether this is a block of a comparison."""
        return self._block is not None

    @property
    def counted(self) -> str:
        """What was counted, such as `AdamW, the first of 2 optimizers`; empty where nothing was."""
        if self._first is None or self.uncounted:
            return LOGGED if self._has_logged else ""
        return f"{self._first.name}{f', the first of {self._several} optimizers' if self._several > 1 else ''}"

    @property
    def steps(self) -> int | None:
        """Through all attempts; None where they can't be counted."""
        if self._has_logged and (self._first is None or self.uncounted):
            return self._rows.summary.last_step
        return self.total if self.uncounted else self._rows.summary.steps

    @property
    def _has_logged(self) -> bool:
        return self._logged_step is not None

    def result(self) -> dict[str, Any]:
        """The fields of `recipes.result.Result` that steps are the source of."""
        summary, steps = self._rows.summary, self.steps
        throughput = summary.throughput()
        if self.counted:
            throughput["counted"] = self.counted
        else:
            throughput = {"unit": None, "mean": None, "why": self.uncounted or NO_STEP}
        skipped = summary.skipped + self._unseen
        applied = None if steps is None or self.skips_unknown else steps - skipped
        return {
            "throughput": throughput,
            "loss": {"first": summary.first_loss, "last": summary.last_loss},
            "eval": summary.evaluation,
            "loss_scale": {"final": summary.loss_scale, "skipped_steps": skipped} if summary.loss_scale else {},
            "updates": {"attempted": steps, "applied": applied},
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
            if self._first is not None and self._first.optimizer() is not None:
                self._several += 1
        if self._first is None or self._first.optimizer() is None:
            self._first = state  # the one before is gone, such as that of another fold
        return state

    def _add(self, count: int, *, skipped: int, loss_scale: float | None) -> None:
        """Add the rows of `count` steps that ended together, the first of which were `skipped`."""
        seconds, steady = self._lap(count)
        if self._block:
            count = min(count, self._block.steps - self._count)
        own = self._rows.newest if self._is_own else None
        self._is_own = False
        if own is not None:  # logged before the first step
            own.update(skipped=skipped > 0, loss_scale=loss_scale)
            self._skipped += skipped > 0
        for place in range(own is not None, count):
            self._add_row(seconds, steady, place < skipped, loss_scale)
        if self._early is not None:
            logged, self._early = self._early, None
            self._merge(logged)
        self._flush_if_due()

    def _add_own(self, step: int) -> None:
        """Add a row for a step that was logged, where none are counted."""
        covers = max(1, step - self._logged_step) if self._logged_step is not None else 1
        seconds, steady = self._lap(covers)
        self._flush_if_due()
        self._add_row(seconds, steady, False, None, covers)
        self._is_own = True

    def _lap(self, count: int) -> tuple[float | None, bool]:
        """The seconds that each of `count` steps took that end now, and whether they say anything of the speed."""
        if self._block and any(self._count < at <= self._count + count for at in self._block.edges):
            self.wait()
        now, disturbed = self._clock(), self.disturbed()
        seconds = None if self._ended is None else max(now - self._ended, 1e-9) / count
        steady = seconds is not None and not disturbed and not self._was_disturbed
        self._ended, self._was_disturbed = now, disturbed
        return seconds, steady

    def _end_block_if_due(self) -> None:
        if self._block and self._count >= self._block.steps:
            self.over = True
            self.when_over()
            raise BlockOver

    def _flush_if_due(self) -> None:
        if self._clock() - self._flushed >= FLUSH_EVERY:
            self.flush()

    def _add_row(
        self, seconds: float | None, steady: bool, skipped: bool, loss_scale: float | None, covers: int = 1
    ) -> None:
        """Add a row for a step, or for the last one that it `covers`, each of which took so long."""
        self._count += 1
        self._skipped += skipped
        if self._is_logged:
            self._unlogged = _Stretch()
        self._is_logged = False
        if self._count < LONG:
            self._steady.append(steady)
        timed = steady and self._count > warm_up(LONG)
        self.timed += timed
        self._unlogged.add(covers, seconds, timed)
        self._rows.add(
            {
                **dict.fromkeys(metrics.STEP),
                "step": self._shift + self._count,
                "seconds": seconds,
                "steps_per_second": None if seconds is None else 1 / seconds,
                "loss_scale": loss_scale,
                "skipped": skipped,
                "skipped_total": self._skipped,
                "timed": timed,
                "time": time.time(),
            }
        )

    def _merge(self, logged: Logged) -> None:
        """Add what was logged to the newest row."""
        row = self._rows.newest
        assert row is not None
        shift = logged.step - self._count
        # Below that the script counts something else, such as epochs. The steps of a block have its own numbers.
        if shift >= -1 and self._block is None:
            if shift != self._shift and not self._has_logged:
                self._renumber(shift)
            self._shift, row["step"] = shift, logged.step
        self._logged_step = logged.step
        if logged.loss is not None:
            row["loss"] = logged.loss
        if logged.losses:
            row["losses"] = {**row.get("losses", {}), **logged.losses}
        if logged.samples is not None:
            self._unlogged.samples += logged.samples
            row["samples_per_second"] = self._unlogged.rate
        row.update({name: value for name, value in logged.more.items() if name in KNOWN})
        if "epoch" in logged.more:
            row["epoch"] = int(logged.more["epoch"])
        if more := {name: value for name, value in logged.more.items() if name not in (*KNOWN, "epoch", "accuracy")}:
            row["logged"] = {**row.get("logged", {}), **more}
        is_new, self._is_logged = not self._is_logged, True
        if self._detector is not None and is_new:
            self._detector.check([row])

    def _renumber(self, shift: int) -> None:
        """Number the steps of this attempt as the script does. Where it went on from an older checkpoint than the last
        step of the attempt before, the steps in between are taken again."""
        first = shift + 1
        if self._count > 1 or first <= self._rows.before:
            self._rows.rewrite(lambda at, row: {**row, "step": first + at}, first)


def _joined(before: Logged | None, after: Logged) -> Logged:
    """What was logged of several micro-batches of one step."""
    if before is None:
        return after
    samples = None if before.samples is None and after.samples is None else (before.samples or 0) + (after.samples or 0)
    return Logged(
        step=after.step,
        loss=before.loss if after.loss is None else after.loss,
        losses={**before.losses, **after.losses},
        samples=samples,
        more={**before.more, **after.more},
    )


def _completed(row: Row, step: int, recorded: Mapping[str, float]) -> Row:
    """The row as that of this step, with what a library recorded of it."""
    return {**row, "step": step, **{key: value for key, value in recorded.items() if row[key] is None}}


class _Stretch:
    """Steps whose samples are logged together."""

    __slots__ = ("_all", "_timed", "samples")

    def __init__(self) -> None:
        self.samples = 0.0
        self._all: tuple[int, float | None] = 0, 0.0
        """Steps and their seconds; None where one has no time."""
        self._timed = 0, 0.0

    def add(self, steps: int, seconds: float | None, timed: bool) -> None:
        """`seconds` is the time of each."""
        count, total = self._all
        self._all = count + steps, None if total is None or seconds is None else total + steps * seconds
        if timed and seconds is not None:
            self._timed = self._timed[0] + steps, self._timed[1] + steps * seconds

    @property
    def rate(self) -> float | None:
        """Samples a second: of the timed steps if there are any, with as many samples each as all have on average."""
        count, total = self._timed if self._timed[0] else self._all
        return self.samples / self._all[0] * count / total if total else None


class _Optimizer:
    """One optimizer that stepped."""

    __slots__ = ("attempted", "name", "optimizer")

    def __init__(self, optimizer: Any, name: str) -> None:
        self.attempted = 0
        self.name = name or type(optimizer).__name__
        self.optimizer = weakref.ref(optimizer)
