"""Times the steps of a user's script by the host's clock, from the end of one to the end of the next."""

from __future__ import annotations

from collections.abc import Sequence

from amp_launcher.metrics import FULL_WARM_UP, warm_up

_WARM_UP = warm_up(FULL_WARM_UP)


class StepTimer:
    """The steps of one attempt, and which of their times count for the rate: none of the warm-up."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        """The time of each of the newest steps; None for the first."""
        self.timed = 0
        """Steps whose time counts."""
        self._count = 0
        self._ended: float | None = None
        """When the last step ended."""
        self._disturbed = False
        self._steady = False
        """Whether the times of the newest steps count unless they are warm-up."""
        self._first: list[bool] = []
        """The same of the first `FULL_WARM_UP` steps."""

    def lap(self, now: float, count: int, disturbed: bool) -> None:
        """`count` steps have ended at `now`. `disturbed`: something, such as an observer, slowed them down."""
        self.seconds = None if self._ended is None else max(now - self._ended, 1e-9) / count
        self._steady = self.seconds is not None and not disturbed and not self._disturbed
        self._ended, self._disturbed = now, disturbed

    def counts(self) -> bool:
        """Whether the time of one more of the newest steps counts."""
        self._count += 1
        if self._count < FULL_WARM_UP:
            self._first.append(self._steady)
        counts = self._steady and self._count > _WARM_UP
        self.timed += counts
        return counts

    def end(self) -> Sequence[bool]:
        """Which times count in an attempt that ends before its warm-up has its full length; empty for a longer one."""
        if self._count >= FULL_WARM_UP:
            return ()
        warm = warm_up(self._count)
        counts = [steady and index >= warm for index, steady in enumerate(self._first)]
        self.timed = sum(counts)
        return counts
