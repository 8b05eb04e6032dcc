"""Watching a training loop in Paddle that nobody here wrote: its layers are those that it calls.

Watched is all that it does up to its second optimizer step; later steps are only counted.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import paddle
from paddle import nn

from recipes.paddle_.observe import Witness
from recipes.paddle_.precision import Precision, stepped

SPAN = 2
"""Optimizer steps that are watched, so that a GAN's generator and discriminator both are."""


class ScriptWitness(Witness):
    """Counts the optimizer steps of a script, and watches the first of them."""

    def __init__(self, precision: Precision) -> None:
        super().__init__(nn.Layer(), precision)
        self.steps = 0
        """Optimizer steps so far."""
        self._open = contextlib.ExitStack()
        self._within = False
        """An optimizer's step is under way: one may call another."""
        self._stepped: Counter[str] = Counter()
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
            with self._open:
                self._open.enter_context(self.step(1))
                yield

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._within or not paddle.in_dynamic_mode():
                return method(optimizer, *args, **kwargs)
            self._stepped.update(stepped(optimizer))
            self._within = True
            try:
                return method(optimizer, *args, **kwargs)
            finally:
                self._within = False
                self.steps += 1
                if self.steps == SPAN:
                    self._open.close()

        return step

    @contextlib.contextmanager
    def _told_of_steps(self, counted: Counter[str]) -> Iterator[None]:
        self._stepped = counted
        yield

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
