"""The part of `amp_launcher.loop.protocols.Executor` that needs no framework: samples, loaded ahead, and rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amp_launcher.loop import sampling
from amp_launcher.loop.prefetch import Prefetcher
from amp_launcher.settings import Settings
from amp_launcher.world.world import ProcessGroup

if TYPE_CHECKING:
    import numpy

Load = Callable[[int, "numpy.ndarray"], Any]
"""From an epoch and this rank's sample indices of one step, [micro-batches, samples in each], to what the step gets; in
TensorFlow NumPy arrays with the same first two dimensions. Called in a thread, some steps ahead; it may depend on
nothing else."""
Schedule = Callable[[int], float]
"""From the number of an optimizer step, counted from 0, to its learning rate."""


class Steps:
    at_once = 1

    def __init__(
        self, settings: Settings, world: ProcessGroup, load: Load | None = None, schedule: Schedule | None = None
    ) -> None:
        self._settings, self._world, self._schedule = settings, world, schedule
        self._prefetcher = None if load is None else Prefetcher(lambda position: load(*position))
        self._epoch = 0
        self._next: int | None = None

    def shares(self, order: Any, epoch: int) -> Any:
        """[steps, micro-batches, this rank's samples in each]."""
        settings, world = self._settings, self._world
        self._epoch, self._next = epoch, None
        return sampling.share(order, settings.batch_size, settings.accumulate, world.rank, world.size)

    def _loaded(self, shares: Any, first: int, count: int = 1) -> tuple[list[Any], float | None]:
        """What each of these steps gets, and the seconds waited for it; the indices where nothing loads."""
        if self._prefetcher is None:
            return [shares[step] for step in range(first, first + count)], None
        if self._next != first:
            self._prefetcher.start((self._epoch, shares[step]) for step in range(first, len(shares)))
        self._next = first + count
        loaded = [self._prefetcher.take() for _ in range(count)]
        return [batch for batch, _ in loaded], sum(waited for _, waited in loaded)

    def _rates(self, shares: Any, first: int, count: int = 1) -> list[float] | None:
        """Learning rates of these steps; None where they stay as they are."""
        done = self._epoch * len(shares) + first
        schedule = self._schedule
        return None if schedule is None else [schedule(number) for number in range(done, done + count)]
