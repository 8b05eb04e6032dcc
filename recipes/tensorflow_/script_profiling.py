"""TensorFlow's own profiler for some steps of a script, started and stopped at the end of an execution.

Steps run inside of graphs. Their number is read from the optimizers' counts after each execution of a graph, or of an
optimizer outside of graphs. While the profiler records it is not read, because that waits for the device and would be
in the trace: an execution is assumed to take as many steps as its last one.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from recipes.tensorflow_.observe.hooks import after
from recipes.trainer.profiling import Profiling


class ScriptProfiling:
    """Reports the steps of a script, whose number `count` returns, to `profiling`."""

    def __init__(self, profiling: Profiling, count: Callable[[], int]) -> None:
        self._profiling = profiling
        self._count = count
        self._number = 0
        self._thread = threading.get_ident()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Steps of the last execution of each function and optimizer."""

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """The script runs in this context."""
        optimizer = keras.optimizers.Optimizer
        with after(Function, "__call__", self._executed), after(optimizer, "apply", self._executed):
            try:
                yield
            finally:
                self._profiling.end(self._number)

    def _executed(self, what: Any) -> None:
        profiling = self._profiling
        if profiling.found or threading.get_ident() != self._thread or not tf.executing_eagerly():
            return
        if profiling.running and what in self._steps:
            self._number += self._steps[what]
        else:
            before, self._number = self._number, self._count()
            self._steps[what] = self._number - before
        profiling.after(self._number)
        profiling.between(self._number + 1)
