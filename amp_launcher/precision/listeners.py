"""Who is told of the precisions that a script makes, in whichever framework. Standard library only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_listeners: list[Callable[[Any], None]] = []


@contextlib.contextmanager
def heard_by(listener: Callable[[Any], None]) -> Iterator[None]:
    """In here `listener` is called with each precision that a script makes."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(made: Any) -> None:
    for listener in _listeners:
        listener(made)
