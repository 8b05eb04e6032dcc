"""The training loop: load, forward, backward, step, log, save. Its parts stand beside it, a file each.

A framework's `Executor` loads the samples of a step and takes it; that is `amp_launcher.torch.loop` for torch, with
what a recipe calls its step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_launcher import metrics
from amp_launcher.loop import sampling
from amp_launcher.loop.attempt import Attempt
from amp_launcher.loop.journal import Journal
from amp_launcher.loop.profiling import Profiling
from amp_launcher.loop.proof import Proof
from amp_launcher.loop.protocols import Evaluate, Executor, State
from amp_launcher.precision import verdict
from amp_launcher.settings import Settings
from amp_launcher.world.preemption import StopPoller, catch_term
from amp_launcher.world.world import ProcessGroup


@dataclass(kw_only=True)
class Training:
    """One attempt at a run: from its checkpoint, if there is one, to its end or to a request to stop.

    Every method is collective: all ranks call it at the same step, and all of them raise `Diverged` at the
    same one, since what they judge by is the same on each.
    """

    settings: Settings
    group: ProcessGroup
    attempt: Attempt
    state: State
    journal: Journal
    proof: Proof
    profiling: Profiling
    replays: bool
    """Whether this only repeats steps of another run, to be compared and not saved."""
    clock: Callable[[], float]
    """Seconds since this process started."""
    say: Callable[[str], None]
    """Prints a line for people."""

    def __post_init__(self) -> None:
        self.done = self.attempt.first

    def run(self, executor: Executor, evaluate: Evaluate | None) -> bool:
        """Run the remaining steps, or stop at the first proof that the mode asked for is not what runs.

        Returns whether that is the end; if not, a request to stop was met.
        """
        catch_term()
        self._begin()
        attempt, journal, number = self.attempt, self.journal, self.done
        warm = number + metrics.warm_up(self._to_planned_stop(number, attempt.last - number))
        poller = StopPoller(self.group, attempt.folder and attempt.folder.stop)
        shares = executor.shares(self._order(number), number // attempt.steps_per_epoch)
        while number < attempt.last:
            if poller.due(number):
                journal.flush()
                if poller.poll(number):
                    return self._stop()
            epoch, within = divmod(number, attempt.steps_per_epoch)
            if within == 0:
                shares = executor.shares(self._order(number), epoch)
            first, count = number + 1, self._at_once(number, executor.at_once)
            self.profiling.before(first, count)
            observed = self.proof.plans(first, count)
            alone = not (observed or self.profiling.running)
            kernels = alone and number < warm <= number + count and self.settings.profile.tool == "none"
            journal.recorder.begin(timed=alone and number >= warm, kernels=kernels)
            with self.proof.observing(observed):
                executed = executor.execute(shares, within, count)  # load, forward, backward, step
            timed = alone and number >= warm and not executed.prepared
            journal.recorder.end(executed, first=first, count=count, epoch=epoch, timed=timed)
            self.done = number = number + count
            journal.after(number, self.state)
            self.profiling.after(number)
            if observed and number < attempt.last and self.proof.is_hopeless():
                journal.flush()  # further steps would be wasted, and their checkpoint not be one to resume from
                return True
            if number % attempt.steps_per_epoch == 0 or number == attempt.total:
                self._end_epoch(epoch, evaluate)
            if self.replays and number == attempt.last:
                journal.flush()
            elif number == attempt.last or _every(self.settings.checkpoint.every, number):
                self._save()
            if number < attempt.last and _every(self.settings.checkpoint.stop_every, number):
                return self._stop()
        return True

    def _order(self, number: int) -> Any:
        return sampling.order(self.settings.seed, number // self.attempt.steps_per_epoch, self.attempt.samples)

    def _at_once(self, number: int, most: int) -> int:
        """How many steps the next execution runs: up to the epoch's end, the next checkpoint or the run's end."""
        per_epoch, every = self.attempt.steps_per_epoch, self.settings.checkpoint.every
        count = min(most, per_epoch - number % per_epoch, self.attempt.last - number)
        return self._to_planned_stop(number, min(count, every - number % every) if every else count)

    def _to_planned_stop(self, number: int, count: int) -> int:
        """`count` steps from `number` on, or those up to the attempt's planned stop."""
        every = self.settings.checkpoint.stop_every
        return min(count, every - number % every) if every else count

    def observed(self) -> dict[str, Any]:
        """result.json's "observed": the verdict over all ranks, and over all steps seen since the run began."""
        judged = self.proof.judged(complete=self.done == self.attempt.last)
        skipped = self.journal.recorder.skipped
        return verdict.without_updates(judged, self.done) if 0 < self.done == skipped else judged

    def seconds(self) -> float:
        """Time of all attempts."""
        return self.attempt.before.seconds + self.clock()

    def _begin(self) -> None:
        attempt, lost = self.attempt, self.attempt.first - self.journal.metrics.summary.steps
        if attempt.resumed_from is not None:
            self.say(f"resumed after step {attempt.first} from {attempt.resumed_from}")
            if lost > 0 and not self.replays:
                self.say(f"metrics.jsonl is damaged: it lacks {lost} of those steps, and so does what sums them up")
        self.journal.begin(self.state, replay=self.replays)

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        self.journal.flush()
        self.journal.recorder.memory.enter(timed=False)
        held_out = self.proof.evaluated(evaluate, self.done) if evaluate else {}
        if held_out:
            self.journal.event("eval", step=self.done, epoch=epoch, **held_out)
        measures = "  ".join(f"held-out {name} {value:.4f}" for name, value in held_out.items())
        loss, rate = self.journal.epoch()
        epochs = -(-self.attempt.total // self.attempt.steps_per_epoch)
        self.say(f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  loss {loss:.4f}  {measures}  {rate}")

    def _save(self) -> Path | None:
        """Save a checkpoint of this step; returns its path on rank 0 of a run with a folder."""
        attempt, journal = self.attempt, self.journal
        if attempt.folder is None:
            return None
        journal.flush()
        journal.recorder.memory.enter(timed=False)
        progress = dataclasses.replace(
            attempt.before,
            step=self.done,
            attempt=attempt.number,
            skipped=journal.recorder.skipped,
            seconds=self.seconds(),
            metrics_offset=journal.metrics.offset(),
            exact=attempt.exact,
            facts=attempt.facts_of_ranks,
            reports=self.proof.reports(),
        )
        path = self.state.save(attempt.folder.checkpoints, progress, journal.check_ours)
        journal.event("checkpoint", step=self.done)
        return path

    def _stop(self) -> bool:
        path = self._save()
        self.journal.event("stop", step=self.done)
        if self.attempt.folder and path:
            self.attempt.folder.mark_stopped(path, self.done)
        self.say(f"stopped after step {self.done}, saved in {path}")
        self.profiling.end(self.done)  # may take seconds
        return False


def _every(steps: int | None, number: int) -> bool:
    return bool(steps) and number % steps == 0  # type: ignore[operator]
