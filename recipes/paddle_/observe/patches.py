"""Eager steps of Paddle's optimizers, by replacing their methods for a while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import paddle

from recipes.trainer.replaced import replaced


@contextlib.contextmanager
def around_optimizer_steps(before: Callable[[Any], None], after: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `before` with the optimizer before each eager optimizer step in this context, and `after` after it.

    A step is a call of `step`, or of `minimize`, which `paddle.Model` calls. One may call the other: that is one step.
    """
    within = False

    def observed(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal within
            if within or not paddle.in_dynamic_mode():
                return method(optimizer, *args, **kwargs)
            before(optimizer)
            within = True
            try:
                return method(optimizer, *args, **kwargs)
            finally:
                within = False
                after()

        return step

    with contextlib.ExitStack() as patches:
        for kind in (paddle.optimizer.Optimizer, *_subclasses(paddle.optimizer.Optimizer)):
            for name in {"step", "minimize"} & vars(kind).keys():
                patches.enter_context(replaced(kind, name, observed(getattr(kind, name))))
        yield


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
