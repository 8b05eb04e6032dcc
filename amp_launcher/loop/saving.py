"""The checkpoints that an attempt leaves, and the marker of one after which it stops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amp_launcher.loop.attempt import Attempt
from amp_launcher.loop.journal import Journal
from amp_launcher.loop.proof import Proof
from amp_launcher.loop.protocols import State


@dataclass(frozen=True, slots=True)
class Saving:
    attempt: Attempt
    state: State
    journal: Journal
    proof: Proof
    seconds: Callable[[], float]
    """Time of all attempts."""

    def save(self, done: int) -> Path | None:
        """Save a checkpoint after that step; returns its path on rank 0 of a run with a folder. Collective."""
        attempt, journal = self.attempt, self.journal
        if attempt.folder is None:
            return None
        journal.flush()
        journal.recorder.memory.enter(timed=False)
        progress = dataclasses.replace(
            attempt.before,
            step=done,
            attempt=attempt.number,
            skipped=journal.recorder.skipped,
            seconds=self.seconds(),
            metrics_offset=journal.metrics.offset(),
            exact=attempt.exact,
            facts=attempt.facts_of_ranks,
            reports=tuple(self.proof.reports()),
        )
        path = self.state.save(attempt.folder.checkpoints, progress, journal.check_ours)
        journal.event("checkpoint", step=done)
        return path

    def stop(self, done: int) -> Path | None:
        """The same, marked as the one to resume from."""
        path = self.save(done)
        self.journal.event("stop", step=done)
        if self.attempt.folder and path:
            self.attempt.folder.mark_stopped(path, done)
        return path
