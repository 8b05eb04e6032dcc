"""Attributes of a framework's classes and modules replaced for a while, to observe what a script does."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from amp_launcher.precision.observation import Guard


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Have `value` as this attribute of a class or module, while open."""
    original, inherited = getattr(owner, name), name not in vars(owner)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def observed(
    owner: Any, name: str, guard: Guard, before: Callable[..., Any], after: Callable[..., None]
) -> AbstractContextManager[None]:
    """Have `before` and `after` called around each call of a method, with its arguments. The call itself is outside of
    the guard: its errors are the script's.

    `after` gets before them what `before` returned, and a tuple of what the method returned, empty where it raised; it
    isn't called after None.
    """
    original, before, after = getattr(owner, name), guard.hook(before), guard.hook(after)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        token = before(*args, **kwargs)
        returned: tuple[Any, ...] = ()
        try:
            returned = (original(*args, **kwargs),)
        finally:
            if token is not None:
                after(token, returned, *args, **kwargs)
        return returned[0]

    return replaced(owner, name, method)
