"""Values as they would be typed. It imports nothing heavy, as `ls` shows settings with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_ODD = re.compile(r"""[\[\](){},"']""")


def show(value: Any) -> str:
    """A value as it would be typed: `true` rather than `True`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_show_item(item) for item in value)}]"
    return str(value)


def some(names: Sequence[str], most: int = 4) -> str:
    """The first few, and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _show_item(value: Any) -> str:
    """An item of a list as `amp_launcher.values` reads it."""
    if not isinstance(value, str):
        return show(value)
    if value and value == value.strip() and not _ODD.search(value):
        return value
    return '"' + re.sub(r'([\\"])', r"\\\1", value) + '"'
