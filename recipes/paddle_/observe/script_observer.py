"""Observes a training loop in Paddle that is not ours: a user's script, by the layers that it calls.

Observed are all calls up to the second optimizer step, and then two steps whenever `Schedule` says so, from the
first layer called where gradients are recorded. Other steps are only counted. Static graphs are not observed:
where one ran, the report says so, and nothing is proved.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import paddle
from paddle import nn

from recipes.paddle_.observe.observer import PrecisionObserver
from recipes.paddle_.observe.step_calls import StepCalls, around_optimizer_steps
from recipes.paddle_.precision import Precision
from recipes.trainer.replaced import replaced
from recipes.trainer.schedule import SPAN, Schedule
from recipes.trainer.step_meter import StepMeter

STATIC = "static graphs were executed, which are not observed in a script in Paddle"


class ScriptObserver(PrecisionObserver):
    """Counts the optimizer steps of a script, and observes some of them."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision.resolved)
        self._precision = precision
        self.steps = 0
        """Optimizer steps so far, without those of static graphs."""
        self.judge: Callable[[list[dict[str, Any]]], None] = lambda reports: None
        """Called with all reports after each span, and with a report that static graphs were not observed."""
        self.static = False
        """A static graph was executed."""
        self._meter: StepMeter
        self._stepping: Any = None
        """The optimizer that steps now."""
        self._schedule = Schedule()
        self._span: contextlib.ExitStack | None = None
        self._waiting = contextlib.ExitStack()
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

    @contextlib.contextmanager
    def observing(self, meter: StepMeter) -> Iterator[None]:
        """The script runs in this context, its steps reported to `meter`. A span in which it raises is not reported."""
        self._meter = meter
        meter.disturbed = lambda: self._span is not None
        with contextlib.ExitStack() as patches:
            patches.enter_context(around_optimizer_steps(self._before_step, self._after_step))
            executor = paddle.static.Executor
            patches.enter_context(replaced(executor, "run", self._noting_static(executor.run)))
            scaler = paddle.amp.GradScaler
            for name in ("step", "minimize"):
                patches.enter_context(replaced(scaler, name, self._noting_scaler(getattr(scaler, name))))
            patches.push(self._end)
            self._begin()
            yield
        if self.static:
            self.reports[:] = [self._unseen_graphs()]

    def _unseen_graphs(self) -> dict[str, Any]:
        return {**self._head(1), "problems": [STATIC]}

    def _before_step(self, optimizer: Any) -> None:
        self._stepping = optimizer
        if self._recorded is not None:
            self._recorded.step(optimizer)

    def _after_step(self) -> None:
        """End the span that is over, and wait for the start of the next one where it is due."""
        self.steps += 1
        self._meter.stepped(self._stepping, applied=True)
        if self._span is not None and self.steps >= self._schedule.due + SPAN - 1:
            self._span.close()
            self._span = None
            self._schedule.end(self.steps)
            self.judge(self.reports)
        if self._span is None and self.steps + 1 == self._schedule.due:
            self._await_layer()

    def _noting_static(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._meter.uncounted = "static graphs were executed, whose optimizer steps can't be counted"
            result = method(*args, **kwargs)
            if not self.static:
                self.static = True
                self.judge([self._unseen_graphs()])
            return result

        return run

    def _noting_scaler(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            self._meter.skips_unknown |= scaler.is_enable()  # the optimizer's kernel skips what overflowed
            return method(scaler, *args, **kwargs)

        return step

    def _await_layer(self) -> None:
        """Start the span at the next call of a layer. Calls are looked at only where a span is due."""
        original = nn.Layer.__call__

        def call(layer: nn.Layer, *inputs: Any, **named: Any) -> Any:
            if not paddle.is_grad_enabled() or not paddle.in_dynamic_mode():
                return original(layer, *inputs, **named)
            self._waiting.close()
            self._begin()
            return layer(*inputs, **named)

        self._waiting.enter_context(replaced(nn.Layer, "__call__", call))

    def _begin(self) -> None:
        self._schedule.begin(self.steps)
        self._span = contextlib.ExitStack()
        self._span.enter_context(self.step(self._schedule.due))

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the current span with the script. A later span without a step says nothing."""
        self._waiting.close()
        if self._span is None:
            return
        self._span.__exit__(kind, error, trace)
        if error is None and 1 < self._schedule.due > self.steps:
            self.reports.pop()

    @contextlib.contextmanager
    def _recording_steps(self, calls: StepCalls) -> Iterator[None]:
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
