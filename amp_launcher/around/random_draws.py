"""Numbers that a framework draws from the generators of `random` and NumPy while it is imported.

A script may seed these before it imports its framework, and draw from them behind that. The wrapper has imported the
framework before the script runs, so that the script's import draws nothing: what was drawn is drawn again there.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from amp_launcher.around.replaced import replaced

MODULES = ("random", "numpy.random")

_drawn: list[Callable[[], Any]] = []
_noting = False


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note the calls of these modules' functions that use the generator of all."""
    global _noting
    with contextlib.ExitStack() as stack:
        for module in map(importlib.import_module, MODULES):
            for name, function in list(vars(module).items()):
                generator = getattr(function, "__self__", None)  # a function of a module written in C has that module
                if name == "seed" or (generator is not None and not isinstance(generator, ModuleType)):
                    stack.enter_context(replaced(module, name, _noted(function)))
        _noting = True
        try:
            yield
        finally:
            _noting = False


def draw_again() -> None:
    """Draw what was drawn; only once."""
    while _drawn:
        _drawn.pop(0)()


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _noting:  # what imported this function keeps it
            _drawn.append(functools.partial(function, *copy.deepcopy(args), **copy.deepcopy(kwargs)))
        return function(*args, **kwargs)

    return call
