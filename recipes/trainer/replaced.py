"""Attributes of a framework's classes and modules replaced for a while, to observe what a script does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


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
