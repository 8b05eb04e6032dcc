"""Which records of runs this process opens."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_RECORDS = ("plan.json", "elsewhere.json")
_noted: list[str] | None = None


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _noted is not None:
        folder, name = os.path.split(os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes)) else "")
        if name in _RECORDS:
            _noted.append(os.path.basename(folder))


sys.addaudithook(_note)


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """The runs whose plans or pointers are opened meanwhile, in their order."""
    global _noted
    _noted = opened = []
    try:
        yield opened
    finally:
        _noted = None
