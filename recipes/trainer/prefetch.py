"""Batches that are loaded while the steps before them are taken."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

AHEAD = 3
"""Batches that lie ready, or are being loaded, while a step is taken."""


class Prefetcher:
    """Calls `load` for one position after another, in a thread of its own, a few ahead of what is taken.

    What `load` gives for a position must depend on nothing but the position: how far ahead it has got is lost when a
    run is interrupted.
    """

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._coming: Iterator[Any] = iter(())
        self._ready: deque[Future[Any]] = deque()

    def start(self, positions: Iterator[Any]) -> None:
        """From now on `take` gives the batches of these positions; what was ready of others is dropped."""
        for each in self._ready:
            each.cancel()
        self._ready.clear()
        self._coming = positions
        self._fill()

    def take(self) -> tuple[Any, float]:
        """The next batch, and the seconds that were waited for it. Raises what `load` raised for it."""
        began = time.perf_counter()
        batch = self._ready.popleft().result()
        waited = time.perf_counter() - began
        self._fill()
        return batch, waited

    def _fill(self) -> None:
        while len(self._ready) < AHEAD:
            position = next(self._coming, None)
            if position is None:
                return
            self._ready.append(self._thread.submit(self._load, position))
