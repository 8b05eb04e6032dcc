"""TensorFlow's own profiler around some steps of a script: it begins and ends where one of its executions ends.

Steps are taken inside of graphs that nobody looks into. How many there were is read from the optimizers' own counts
after each execution, of a graph or of an optimizer outside of any; but not while the profiler records, since reading
waits for the device, and the waiting would be in the trace: an execution is taken to be of as many steps as before.
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
    """Tells `profiling` of the steps of a script, which `count` gives the number of."""

    def __init__(self, profiling: Profiling, count: Callable[[], int]) -> None:
        self._profiling = profiling
        self._count = count
        self._number = 0
        self._thread = threading.get_ident()
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Steps that the last execution of each was of."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The script runs in here."""
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
        if profiling.running and what in self._taken:
            self._number += self._taken[what]
        else:
            before, self._number = self._number, self._count()
            self._taken[what] = self._number - before
        profiling.after(self._number)
        profiling.between(self._number + 1)
