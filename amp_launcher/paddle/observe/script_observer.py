"""Observes a training loop in Paddle that is not ours: a user's script, by the layers that it calls.

Observed are all calls up to the second optimizer step, and then two steps whenever `Schedule` says so, from the
first layer called where gradients are recorded. Other steps are only counted. Static graphs are not observed:
where one ran, the report says so, and nothing is proved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle import nn

from amp_launcher.around.replaced import observed, replaced
from amp_launcher.around.schedule import SPAN, Schedule
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.loop.divergence import Diverged
from amp_launcher.paddle.observe.observer import PrecisionObserver
from amp_launcher.paddle.observe.step_calls import StepCalls, around_optimizer_steps
from amp_launcher.paddle.precision import Precision
from amp_launcher.precision.observation import Guard

STATIC = "static graphs were executed, which are not observed in a script in Paddle"


class ScriptObserver(PrecisionObserver):
    """Counts the optimizer steps of a script, and observes some of them."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision.resolved)
        self._precision = precision
        self.steps = 0
        """Optimizer steps so far, without those of static graphs."""
        self.judge: Callable[[Sequence[dict[str, Any]]], None] = lambda reports: None
        """Called with all reports after each span, and with a report that static graphs were not observed."""
        self.warn: Callable[[str], None] = lambda why: None
        """Called with a reason why nothing will be proved: observing failed."""
        self.static = False
        """A static graph was executed."""
        self.guard = Guard(Diverged, failed=self._fail)
        """Around all that is called while the script runs."""
        self._failed_at = 1
        """The step in which observing failed."""
        self._meter: StepMeter
        self._schedule = Schedule()
        self._span: contextlib.ExitStack | None = None
        self._waiting = contextlib.ExitStack()
        self._patches = contextlib.ExitStack()
        self._recorded: StepCalls | None = None
        """Of the current span."""
        self._called: dict[int, nn.Layer] = {}
        """Every layer that was called while it was observed, by its id."""

    @property
    def precision(self) -> Precision:
        return self._precision

    @precision.setter
    def precision(self, precision: Precision) -> None:
        """The script has made its own."""
        self._precision = precision
        self._resolved = precision.resolved

    def _kept(self) -> Mapping[str, Sequence[nn.Layer]]:
        return self._precision.kept

    def _guard(self) -> Guard:
        return self.guard

    @contextlib.contextmanager
    def observing(self, meter: StepMeter) -> Iterator[None]:
        """The script runs in this context, its steps reported to `meter`."""
        self._meter = meter
        meter.disturbed = lambda: self._span is not None
        self.guard.hook(self._begin_observing)()
        try:
            yield
        finally:
            self.conclude()
            with self.guard():
                self._patches.close()

    def conclude(self) -> None:
        """Report what was observed: the script ends."""
        with self.guard():
            self._close_last()
        if self.static and not self.guard.problems:
            self.reports[:] = [self._unseen_graphs()]
        if self.guard.problems:
            self._meter.uncounted = self._meter.uncounted or self.guard.problems[0]
            self.reports.append({**self._failed(self._failed_at, self.guard.problems), "extra": True})

    def _begin_observing(self) -> None:
        enter, guard = self._patches.enter_context, self.guard
        enter(around_optimizer_steps(guard, self._before_step, self._after_step))
        enter(observed(paddle.static.Executor, "run", guard, self._before_graph, self._after_graph))
        for name in ("step", "minimize"):
            enter(observed(paddle.amp.GradScaler, name, guard, self._before_scaler, lambda *scaled: None))
        self._begin()

    def _fail(self) -> None:
        """An error in the observer: nothing more is observed, and nothing will be proved."""
        self._failed_at = max(1, self.steps)
        with contextlib.ExitStack() as stack:
            stack.callback(self.warn, self.guard.problems[0])
            stack.callback(self._stop_observing)

    def _stop_observing(self) -> None:
        span, self._span = self._span, None
        with self._waiting, span or contextlib.ExitStack():
            pass

    def _add_report(self, number: int, evaluation: bool, report: dict[str, Any], guard: Guard) -> None:
        if report:
            self.reports.append({**report, "steps": max(1, self.steps - self._schedule.due + 1)})

    def _unseen_graphs(self) -> dict[str, Any]:
        return self._failed(1, [STATIC])

    def _before_step(self, optimizer: Any) -> None:
        if self._recorded is not None:
            self._recorded.step(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        """End the span that is over, and wait for the start of the next one where it is due."""
        self.steps += 1
        self._meter.stepped(optimizer, applied=True)
        if self._span is not None and self.steps >= self._schedule.due + SPAN - 1:
            self._stop_observing()
            self._schedule.end(self.steps)
            self.judge(self.reports)
        if self._span is None and self.steps + 1 == self._schedule.due:
            self._await_layer()

    def _before_graph(self, *args: Any, **kwargs: Any) -> bool:
        self._meter.uncounted = "static graphs were executed, whose optimizer steps can't be counted"
        return True

    def _after_graph(self, *args: Any, **kwargs: Any) -> None:
        if not self.static:
            self.static = True
            self.judge([self._unseen_graphs()])

    def _before_scaler(self, scaler: Any, *args: Any, **kwargs: Any) -> None:
        self._meter.skips_unknown |= scaler.is_enable()  # the optimizer's kernel skips what overflowed

    def _await_layer(self) -> None:
        """Start the span at the next call of a layer. Calls are looked at only where a span is due."""
        original, begun = nn.Layer.__call__, self.guard.hook(self._begin_at)

        def call(layer: nn.Layer, *inputs: Any, **named: Any) -> Any:
            return layer(*inputs, **named) if begun() else original(layer, *inputs, **named)

        self._waiting.enter_context(replaced(nn.Layer, "__call__", call))

    def _begin_at(self) -> bool:
        """Start the span unless this is no part of a step; returns whether it was started."""
        if not paddle.is_grad_enabled() or not paddle.in_dynamic_mode():
            return False
        self._waiting.close()
        self._begin()
        return not self.guard.problems

    def _begin(self) -> None:
        self._schedule.begin(self.steps)
        self._span = contextlib.ExitStack()
        self._span.enter_context(self.step(self._schedule.due))

    def _close_last(self) -> None:
        """End the current span with the script. A later span without a step says nothing."""
        reports = len(self.reports)
        self._stop_observing()
        if 1 < self._schedule.due > self.steps:
            del self.reports[reports:]

    @contextlib.contextmanager
    def _recording_steps(self, calls: StepCalls, guard: Guard) -> Iterator[None]:
        self._recorded = calls
        try:
            yield
        finally:
            self._recorded = None

    def _on_layer(self, layer: nn.Layer) -> None:
        self._called[id(layer)] = layer

    def _layers(self) -> list[nn.Layer]:
        layers = (inner for layer in self._called.values() for inner in layer.sublayers(include_self=True))
        return list({id(layer): layer for layer in layers}.values())
