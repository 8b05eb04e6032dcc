"""What is called behind the methods of others, for as long as a script runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def after(owner: type[Any], name: str, told: Callable[[Any], None]) -> Iterator[None]:
    """Have `told` called with the object after each call of that method of it."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        told(self)
        return result

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)
