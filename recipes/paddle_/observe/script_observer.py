"""Watching a training loop in Paddle that nobody here wrote: its layers are those that it calls.

Watched are all that it does up to its second optimizer step, and then a span of two steps in each following decade of
steps, from the first layer that is called where something learns. Other steps are only counted. What static graphs
compute isn't watched: that they ran is reported, and nothing is proved then.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import paddle
from paddle import nn

from recipes.paddle_.observe.observer import Seen, Witness
from recipes.paddle_.precision.base import Precision

SPAN = 2
"""Optimizer steps that are watched at a time, so that a GAN's generator and discriminator both are."""
STATIC = "static graphs were executed, which nothing watches in a script in Paddle"


class ScriptWitness(Witness):
    """Counts the optimizer steps of a script, and watches some of them."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision)
        self.steps = 0
        """Optimizer steps so far, but for those inside of static graphs."""
        self.static = False
        """A static graph was executed."""
        self._due = 1
        self._open: contextlib.ExitStack | None = None
        self._waiting = contextlib.ExitStack()
        self._within = False
        """An optimizer's step is under way: one may call another."""
        self._seen: Seen | None = None
        """What is seen of the span under way."""
        self._called: dict[int, nn.Layer] = {}
        """Every layer that was called while it was watched, by its id."""

    @property
    def precision(self) -> Precision:
        return self._precision

    @precision.setter
    def precision(self, precision: Precision) -> None:
        self._precision = precision

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The script runs in here. What was being watched when it ends in an exception is not reported."""
        kinds = (paddle.optimizer.Optimizer, *_below(paddle.optimizer.Optimizer))
        with contextlib.ExitStack() as patches:
            for kind in kinds:
                for name in {"step", "minimize"} & vars(kind).keys():
                    patches.enter_context(_replaced(kind, name, self._counted(getattr(kind, name))))
            executor = paddle.static.Executor
            patches.enter_context(_replaced(executor, "run", self._noticed(executor.run)))
            patches.push(self._end)
            self._begin()
            yield
        if self.static:
            self.reports[:] = [{**self._head(1), "problems": [STATIC]}]

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._within or not paddle.in_dynamic_mode():
                return method(optimizer, *args, **kwargs)
            if self._seen is not None:
                self._seen.step(optimizer)
            self._within = True
            try:
                return method(optimizer, *args, **kwargs)
            finally:
                self._within = False
                self.steps += 1
                self._move_on()

        return step

    def _noticed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.static = True
            return method(*args, **kwargs)

        return run

    def _move_on(self) -> None:
        """Behind a step: end the span that is over, and look out for the next one where it is due."""
        if self._open is not None and self.steps >= self._due + SPAN - 1:
            self._open.close()
            self._open = None
            low = 10 ** len(str(self.steps))
            self._due = random.Random(low).randrange(low, 10 * low)
        if self._open is None and self.steps + 1 == self._due:
            self._await_layer()

    def _await_layer(self) -> None:
        """Only where a span is due does a layer's call look whether it begins here."""
        original = nn.Layer.__call__

        def call(layer: nn.Layer, *inputs: Any, **named: Any) -> Any:
            if not paddle.is_grad_enabled() or not paddle.in_dynamic_mode():
                return original(layer, *inputs, **named)
            self._waiting.close()
            self._begin()
            return layer(*inputs, **named)

        self._waiting.enter_context(_replaced(nn.Layer, "__call__", call))

    def _begin(self) -> None:
        self._open = contextlib.ExitStack()
        self._open.enter_context(self.step(self._due))

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """With the script ends what is watched. A later span in which no step was taken tells nothing."""
        self._waiting.close()
        if self._open is None:
            return
        self._open.__exit__(kind, error, trace)
        if error is None and 1 < self._due > self.steps:
            self.reports.pop()

    @contextlib.contextmanager
    def _told_of_steps(self, seen: Seen) -> Iterator[None]:
        self._seen = seen
        try:
            yield
        finally:
            self._seen = None

    def _on_layer(self, layer: nn.Layer) -> None:
        self._called[id(layer)] = layer

    def _layers(self) -> list[nn.Layer]:
        return list(
            {id(each): each for one in self._called.values() for each in one.sublayers(include_self=True)}.values()
        )


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)
