"""What a Python that multiprocessing starts anew, by spawn or forkserver, does before anything of the script."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol


class Start(Protocol):
    """`multiprocessing.util.spawnv_passfds`."""

    def __call__(self, path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int: ...


_SPAWNED = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
"""How the code begins that multiprocessing starts a Python with, for processes that run code of the script."""


def after(statements: str, start: Start) -> Start:
    """`start` for a Python that imports this package, which its `sys.path` doesn't have, and runs the statements."""
    code = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    first = f"import sys; sys.path.insert(0, {code!r}); import amp_launcher; del sys.path[0]; {statements}"

    def start_after(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        words = [first + word if isinstance(word, str) and word.startswith(_SPAWNED) else word for word in args]
        return start(path, words, passfds)

    return start_after
