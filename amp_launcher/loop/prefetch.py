"""Loading batches ahead, in a thread, while earlier steps run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

AHEAD = 3
"""Batches that are ready or being loaded while a step runs."""


class Prefetcher:
    """Calls `load` for one position after another in a thread, a few ahead of those taken.

    The batch of a position must depend on the position alone: how far ahead it was is lost when a run is interrupted.
    """

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self._load = load
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._positions: Iterator[Any] = iter(())
        self._ready: deque[Future[Any]] = deque()

    def start(self, positions: Iterator[Any]) -> None:
        """Take the batches of these positions from now on; ready batches of others are dropped."""
        for batch in self._ready:
            batch.cancel()
        self._ready.clear()
        self._positions = positions
        self._fill()

    def take(self) -> tuple[Any, float]:
        """The next batch, and the seconds waited for it. Raises what `load` raised for it."""
        began = time.perf_counter()
        batch = self._ready.popleft().result()
        waited = time.perf_counter() - began
        self._fill()
        return batch, waited

    def _fill(self) -> None:
        while len(self._ready) < AHEAD:
            position = next(self._positions, None)
            if position is None:
                return
            self._ready.append(self._thread.submit(self._load, position))
