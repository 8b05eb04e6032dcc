"""The training loop: load, forward, backward, step, log, save. Each of its parts has a file in this folder.

A framework's `Executor` loads the samples of a step and takes it; that is `amp_launcher.torch.loop` for torch, with
what a recipe calls its step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from amp_launcher.loop.profiling import Profiling
from amp_launcher.loop.protocols import Evaluate, Executor
from amp_launcher.loop.saving import Saving
from amp_launcher.loop.spans import Spans
from amp_launcher.world.preemption import StopPoller

SAID_EVERY = 30.0
"""Seconds after which a run without a folder, whose steps nothing else shows, says how far it is."""


class Training:
    """One attempt at a run: from its checkpoint, if there is one, to its end or to a request to stop.

    Every method is collective: all ranks call it at the same step, and all of them raise `Diverged` at the
    same one, since what they judge by is the same on each.
    """

    def __init__(self, spans: Spans, saving: Saving, profiling: Profiling, say: Callable[[str], None]) -> None:
        """`say` prints a line for people."""
        self.spans, self.saving, self.profiling, self.say = spans, saving, profiling, say
        self.attempt, self.journal, self.proof = saving.attempt, saving.journal, saving.proof
        self.done = self.attempt.first
        self._said = time.monotonic()

    def run(self, executor: Executor, evaluate: Evaluate | None, poller: StopPoller) -> bool:
        """Run the remaining steps, or stop at the first proof that the mode asked for is not what runs.

        Returns whether that is the end; if not, a request to stop was met.
        """
        spans, journal, state = self.spans, self.journal, self.saving.state
        shares = executor.shares(spans.order(self.done), self.done // self.attempt.steps_per_epoch)
        while self.done < self.attempt.last:
            if poller.due(self.done):
                journal.flush()
                if poller.poll(self.done):
                    return self._stop()
            span = spans.after(self.done, executor.at_once)
            if span.within == 0:
                shares = executor.shares(spans.order(self.done), span.epoch)
            self.profiling.before(span.first, span.count)
            observed = self.proof.plans(span.first, span.count)
            alone = not (observed or self.profiling.running)
            timed = alone and spans.is_timed(span)
            journal.recorder.begin(timed=timed, kernels=alone and spans.shows_kernels(span))
            with self.proof.observing(observed):
                executed = executor.execute(shares, span.within, span.count)  # load, forward, backward, step
            journal.recorder.end(executed, span, timed=timed and not executed.prepared)
            self.done = span.last
            journal.after(self.done, state)
            self.profiling.after(self.done)
            if observed and self.done < self.attempt.last and self.proof.is_hopeless():
                journal.flush()  # further steps would be wasted, and their checkpoint not be one to resume from
                return True
            if spans.ends_epoch(self.done):
                self._end_epoch(span.epoch, evaluate)
            elif not self.attempt.folder and time.monotonic() - self._said >= SAID_EVERY:
                self._tell(f"step {self.done}/{self.attempt.last}")
            if self.attempt.replays and self.done == self.attempt.last:
                journal.flush()
            elif spans.is_saved(self.done):
                self.saving.save(self.done)
            if spans.is_stop(self.done):
                return self._stop()
        return True

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        self.journal.flush()
        self.journal.recorder.memory.enter(timed=False)
        held_out = self.proof.evaluated(evaluate, self.done) if evaluate else {}
        if held_out:
            self.journal.event("eval", step=self.done, epoch=epoch, **held_out)
        measures = "  ".join(f"held-out {name} {value:.4f}" for name, value in held_out.items())
        loss, rate = self.journal.epoch()
        epochs = self.attempt.epochs
        self._tell(f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  loss {loss:.4f}  {measures}  {rate}")

    def _tell(self, line: str) -> None:
        self.say(line)
        self._said = time.monotonic()

    def _stop(self) -> bool:
        path = self.saving.stop(self.done)
        self.say(f"stopped after step {self.done}, saved in {path}")
        self.profiling.end(self.done)  # may take seconds
        return False
