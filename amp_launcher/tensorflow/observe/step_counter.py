"""Reports the optimizer steps of a user's script to its meter and its profiler, by the optimizers' own counts.

Steps run inside graphs. The counts are read before and after each execution of a graph, or of an optimizer outside
graphs. On a GPU reading waits for the device, and it would be in the trace of a profiler: there, and while one records,
only the first executions of a function are read, and later ones are assumed to have as many steps.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from amp_launcher.around.replaced import observed, replaced
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.loop.profiling import Profiling
from amp_launcher.tensorflow.observe.patches import after
from amp_launcher.tensorflow.observe.script_observer import ScriptObserver
from amp_launcher.tensorflow.observe.sessions import TrainOperation

FIRST_EXECUTIONS = 3
"""Executions of each function whose counts are read where reading waits for the device."""
UNREAD = "nothing that counts its optimizer steps could be read"
AT_ITS_END = "its optimizer steps were counted at its end only"


class StepCounter:
    """Counts the steps of a script's optimizers for `meter` and `profiling`, and tells `observer` of each execution."""

    def __init__(self, meter: StepMeter, observer: ScriptObserver, profiling: Profiling, *, waits: bool) -> None:
        """`waits`: reading a count waits for the device."""
        self._meter = meter
        self._observer = observer
        self._guard = observer.guard
        self._hooks = contextlib.ExitStack()
        self._profiling = profiling
        self._number = 0
        """Steps of the optimizer with the most."""
        self._waits = waits
        self._optimizers: list[weakref.ref[keras.Optimizer]] = []
        self._thread = threading.get_ident()
        self._within = False
        self._seen: weakref.WeakKeyDictionary[Any, tuple[int, list[_StepDelta]]] = weakref.WeakKeyDictionary()
        """Of each function: its executions, and the steps of the last one that was read."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """The script runs in this context."""
        self._guard.hook(self._start)()
        try:
            yield
        finally:
            self.conclude()
            with self._guard():
                self._hooks.close()

    def conclude(self) -> None:
        """Count what could not be counted one by one: the script ends."""
        with self._guard():
            self._profiling.end(self._number)
            self._conclude()
        if self._guard.problems and not self._meter.uncounted:
            self._meter.uncounted = self._guard.problems[0]

    def _start(self) -> None:
        optimizer, enter = keras.optimizers.Optimizer, self._hooks.enter_context
        enter(after(optimizer, "__init__", self._guard.hook(self._made)))
        for owner, name in ((Function, "__call__"), (optimizer, "apply")):
            enter(observed(owner, name, self._guard, self._before_execution, self._after_execution))
        enter(replaced(self._observer.sessions, "stepped", self._on_session))

    def _on_session(self, operation: TrainOperation) -> None:
        self._meter.skips_unknown |= operation.conditional
        self._meter.stepped(operation, applied=True, name=operation.name)
        self._number += self._meter.optimizers.is_first(operation)
        self._profiling.after(self._number)
        self._profiling.between(self._number + 1)
        self._observer.executed()

    def _made(self, optimizer: keras.Optimizer) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def _before_execution(self, what: Any, *args: Any, **kwargs: Any) -> tuple[dict[int, _Count] | None] | None:
        """The counts before it, None where they aren't read."""
        if self._within or threading.get_ident() != self._thread or not tf.executing_eagerly():
            return None
        executions, _ = self._seen.get(what, (0, []))
        reads = executions < (1 if self._profiling.running else FIRST_EXECUTIONS) or not self._waits
        begun = (self._counts() if reads else None,)
        self._within = True
        return begun

    def _after_execution(
        self, begun: tuple[dict[int, _Count] | None], returned: tuple[Any, ...], what: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._within = False
        if not returned:
            return
        (before,) = begun
        executions, deltas = self._seen.get(what, (0, []))
        if before is not None:
            deltas = [_between(before.get(number), after) for number, after in self._counts().items()]
        self._seen[what] = executions + 1, deltas
        for delta in deltas:
            if (optimizer := delta.optimizer()) is not None and delta.steps:
                name = type(optimizer).__name__ if isinstance(optimizer, keras.optimizers.Optimizer) else "an optimizer"
                scale = delta.loss_scale
                self._meter.stepped(
                    optimizer, applied=True, count=delta.steps, skipped=delta.skipped, loss_scale=scale, name=name
                )
        self._number += max((delta.steps for delta in deltas), default=0)
        self._profiling.after(self._number)
        self._profiling.between(self._number + 1)
        self._observer.executed()

    def _counts(self) -> dict[int, _Count]:
        """The step count of each optimizer by its id; of one that is not Keras 3's by the id of its counter."""
        alive = [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]
        scaling = [optimizer for optimizer in alive if isinstance(optimizer, keras.optimizers.LossScaleOptimizer)]
        scales = {id(optimizer.inner_optimizer): _scale(optimizer) for optimizer in scaling}
        counts = {}
        keras_counters = set()
        for optimizer in alive:
            if optimizer not in scaling:
                number = id(optimizer)
                counts[number] = _Count(optimizer, int(optimizer.iterations.numpy()), scales.get(number))
                count = optimizer._iterations.value  # of micro-batches, where gradients are accumulated
                keras_counters |= {id(count), *map(id, getattr(count, "values", ()))}  # one for each replica
        for counter in self._observer.counters:
            if id(counter) not in keras_counters:
                counts[id(counter)] = _Count(counter, int(counter.numpy()))
        return counts

    def _conclude(self) -> None:
        if not self._observer.counts():
            self._meter.uncounted = UNREAD
        elif not self._meter.counted and (steps := self._observer.steps()):
            self._meter.uncounted, self._meter.total = AT_ITS_END, steps


class _Count(NamedTuple):
    """The step count of an optimizer."""

    optimizer: Any
    applied: int
    loss_scale: float | None = None


class _StepDelta(NamedTuple):
    """The steps of an optimizer in one execution."""

    optimizer: weakref.ref[Any]
    steps: int
    skipped: int
    """Of these."""
    loss_scale: float | None
    """Before them."""


def _between(before: _Count | None, after: _Count) -> _StepDelta:
    """Keras halves its loss scale at each step that it skips."""
    scale = before.loss_scale if before and before.loss_scale else after.loss_scale
    fall = scale / after.loss_scale if scale and after.loss_scale else 1.0
    applied, skipped = after.applied - (before.applied if before else 0), max(0, round(math.log2(fall)))
    return _StepDelta(weakref.ref(after.optimizer), max(0, applied) + skipped, skipped, scale)


def _scale(optimizer: keras.optimizers.LossScaleOptimizer) -> float:
    return float(optimizer.dynamic_scale.numpy()) if optimizer.built else float(optimizer.initial_scale)
