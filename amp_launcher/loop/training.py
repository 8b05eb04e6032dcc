"""The training loop over a run's steps: checkpoints, metrics, evaluation and requests to stop between them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from amp_launcher import metrics, run_folder
from amp_launcher.loop import sampling
from amp_launcher.loop.divergence import Detector
from amp_launcher.loop.profiling import Profiler, Profiling
from amp_launcher.loop.progress import Progress
from amp_launcher.loop.proof import Proof
from amp_launcher.loop.protocols import Evaluate, Executor, Observer, State
from amp_launcher.loop.recorder import Recorder
from amp_launcher.loop.replay import Replay, Request
from amp_launcher.metrics import MetricsWriter
from amp_launcher.precision import verdict
from amp_launcher.run_folder import RunFolder
from amp_launcher.settings import Settings
from amp_launcher.step_record import StepRecord
from amp_launcher.typed import SettingsError
from amp_launcher.world.device import Device
from amp_launcher.world.preemption import StopPoller, catch_term
from amp_launcher.world.world import ProcessGroup


class Training:
    """One attempt at a run: from its checkpoint, if there is one, to its end or to a request to stop.

    Every method is collective: all ranks call it at the same step, and all of them raise `Diverged` at the
    same one, since what they judge by is the same on each.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        group: ProcessGroup,
        device: Device,
        state: State,
        observer: Observer,
        divergence: Detector,
        folder: Path | None,
        samples: int,
        exact: bool,
        seconds: Callable[[], float],
        say: Callable[[str], None],
        profiler: Profiler | None = None,
        data_digest: str = "",
        tokens: int = 0,
        facts: Mapping[str, Any] | None = None,
        request: Request | None = None,
    ) -> None:
        """With `data_digest` a run resumes on data of that digest alone. `tokens` are those of a sample of text.
        `facts` are versions, data and processor, which decide on the last bits of results; `request` is for the replay
        of some steps of another run."""
        self.settings = settings
        self.group = group
        self.samples = samples
        self.steps_per_epoch = samples // settings.batch
        if self.steps_per_epoch == 0:
            raise SettingsError(
                f"batch={settings.batch} is more than the {samples} samples of data={settings.data.name}", "batch"
            )
        self.total = settings.steps or (settings.epochs or 1) * self.steps_per_epoch
        launched = os.environ.get("LAUNCHER_ATTEMPT")
        if folder and launched and group.rank == 0:
            RunFolder(path=folder, attempt=int(launched)).check_ours()
        resumed = state.resume(folder / "checkpoints") if folder else None
        before, self.resumed_from = resumed or (Progress(exact=exact), None)
        if data_digest and before.data and before.data != data_digest and request is None:
            raise SettingsError(
                f"data={settings.data.name} is other data than the run in {folder} was trained on: {data_digest}, not "
                f"{before.data}; give it that data, or name another run folder to start anew",
                "data.name",
            )
        before = dataclasses.replace(before, data=data_digest)
        if request and before.step <= request.first:  # the run's checkpoint; from here on it is the replay's own
            before = dataclasses.replace(before, seconds=0.0, metrics_offset=0, reports=())
            request = dataclasses.replace(request, first=before.step)
        if before.step > self.total:
            raise SettingsError(
                f"the run in {folder} has done {before.step} steps, and this asks for {self.total} in all; "
                "say more epochs or steps",
                "steps" if settings.steps else "epochs",
            )
        self.first = self.done = before.step
        self.attempt = int(launched) if launched else run_folder.next_attempt(folder, before.attempt)
        self.exact = exact and before.exact
        self.last = request.step if request else self.total
        self.facts = {**state.machine(), **(facts or {}), "exact": self.exact}
        self._facts = tuple(group.gather(self.facts))
        self.recorder = Recorder(group, device, settings.batch, before.skipped, tokens)
        self.folder = RunFolder(path=folder, attempt=self.attempt) if folder else None
        self.metrics = self._open_metrics(before)
        self._record: StepRecord | None = None
        if self.folder and settings.verify.record:
            group.broadcast(None)  # rank 0 has made the folder
            self._record = StepRecord(self.folder.path, group.rank, self.facts, self.first)
        self.replay = Replay(request, folder, group, state) if request and folder else None
        self._before = before
        self._seconds = seconds
        self._say = say
        self._state = state
        self._proof = Proof(settings=settings, group=group, observer=observer, before=before.reports, say=say)
        self._divergence = divergence
        self._epoch: list[dict[str, Any]] = []
        self.profiling = Profiling(settings.profile, profiler, folder)
        every = settings.checkpoint.stop_every
        last = min(self.last, (self.first // every + 1) * every) if every else self.last
        self.profiling.choose(self.first + 1, last, goes_on=last < self.last)
        self._planned = choose_steps(self.last, settings.seed, self.first + 1, self.profiling.steps)

    def run(self, executor: Executor, evaluate: Evaluate | None) -> bool:
        """Run the remaining steps, or stop at the first proof that the mode asked for is not what runs.

        Returns whether that is the end; if not, a request to stop was met.
        """
        catch_term()
        self._begin()
        warm = self.first + metrics.warm_up(self._rest(self.first, self.last - self.first))
        poller = StopPoller(self.group, self.folder and self.folder.stop)
        epoch = self.first // self.steps_per_epoch
        shares = executor.shares(self._order(epoch), epoch)
        number = self.first
        while number < self.last:
            if poller.due(number):
                self._flush()
                if poller.poll(number):
                    self._stop()
                    return False
            epoch, within = divmod(number, self.steps_per_epoch)
            if within == 0:
                shares = executor.shares(self._order(epoch), epoch)
            count = self._at_once(number, executor.at_once)
            watched = self._planned.intersection(range(number + 1, number + count + 1))
            self.profiling.before(number + 1, count)
            timed = number >= warm and not (watched or self.profiling.running)
            self.recorder.begin(timed=timed)
            with contextlib.ExitStack() as observed:
                for step in sorted(watched):
                    observed.enter_context(self._proof.observer.step(step))
                executed = executor.execute(shares, within, count)
            timed = timed and not executed.prepared
            self.recorder.end(executed, first=number + 1, count=count, epoch=epoch, timed=timed)
            self.done = number = number + count
            if self._record:
                self._record.add(number, self._state.digests())
            self.profiling.after(number)
            if watched and number < self.last and self._proof.is_hopeless():
                self._flush()  # further steps would be wasted, and their checkpoint not be one to resume from
                return True
            if number % self.steps_per_epoch == 0 or number == self.total:
                self._end_epoch(epoch, evaluate)
            every = self.settings.checkpoint.every
            if self.replay and number == self.last:
                self._flush()  # it is compared, and not saved
            elif number == self.last or (every and number % every == 0):
                self._save()
            stop_every = self.settings.checkpoint.stop_every
            if stop_every and number % stop_every == 0 and number < self.last:
                self._stop()
                return False
        return True

    def _at_once(self, number: int, most: int) -> int:
        """How many steps the next execution runs: up to the epoch's end, the next checkpoint or the run's end."""
        count = min(most, self.steps_per_epoch - number % self.steps_per_epoch, self.last - number)
        every = self.settings.checkpoint.every
        return self._rest(number, min(count, every - number % every) if every else count)

    def _rest(self, number: int, count: int) -> int:
        """`count` steps from `number` on, or those up to the attempt's planned stop."""
        every = self.settings.checkpoint.stop_every
        return min(count, every - number % every) if every else count

    def observed(self) -> dict[str, Any]:
        """result.json's "observed": the verdict over all ranks, and over all steps seen since the run began."""
        judged = self._proof.judged(self._planned if self.done == self.last else set())
        return verdict.without_updates(judged, self.done) if 0 < self.done == self.recorder.skipped else judged

    def seconds(self) -> float:
        """Time of all attempts."""
        return self._before.seconds + self._seconds()

    def event(self, name: str, **values: Any) -> None:
        self.check_ours()
        self.metrics.append([{"event": name, **values, "time": time.time()}])

    def check_ours(self) -> None:
        """Raise `Superseded` on rank 0 if the run folder is another attempt's now; the other ranks end with it."""
        if self.folder and self.group.rank == 0:
            self.folder.check_ours()

    def _open_metrics(self, before: Progress) -> MetricsWriter:
        if self.folder is None or self.group.rank:
            return MetricsWriter(None)
        self.folder.create()
        self.check_ours()
        return MetricsWriter(self.folder.metrics, before.metrics_offset)

    def _begin(self) -> None:
        if self.resumed_from is not None:
            self._say(f"resumed after step {self.first} from {self.resumed_from}")
            lost = self.first - self.metrics.summary.steps
            if lost > 0 and not self.replay:
                self._say(f"metrics.jsonl is damaged: it lacks {lost} of those steps, and so does what sums them up")
        if self._record and self.replay and self.first and self.group.rank == 0:
            # The state that was loaded, against the record's; that of other ranks is in no checkpoint.
            self._record.add(self.first, self._state.digests())
            self._record.write([{"step": self.first, "loss": None, "grad_norm": None}])
        self.event(
            "start",
            attempt=self.attempt,
            total_steps=self.last,
            epochs=self.settings.epochs,
            resumed_from=self.first if self.resumed_from else None,
            world_size=self.group.size,
            device=self.group.members[0].device,
        )

    def _order(self, epoch: int) -> Any:
        return sampling.order(self.settings.seed, epoch, self.samples)

    def _flush(self) -> None:
        rows = self.recorder.flush()
        self._epoch += rows
        self.check_ours()
        self.metrics.append(rows)
        if self._record:
            self._record.write(rows)
        self._divergence.check(rows)  # before anything is saved of diverged weights

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        self._flush()
        self.recorder.memory.enter(timed=False)
        rows, self._epoch = self._epoch, []
        held_out = self._proof.evaluated(evaluate, self.done) if evaluate else {}
        if held_out:
            self.event("eval", step=self.done, epoch=epoch, **held_out)
        measures = "  ".join(f"held-out {name} {value:.4f}" for name, value in held_out.items())
        loss = statistics.fmean(row["loss"] for row in rows)
        key, unit = next(rate for rate in metrics.RATES if rate[0] in rows[0])
        rate = statistics.fmean(row[key] for row in rows)
        epochs = -(-self.total // self.steps_per_epoch)
        self._say(f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  loss {loss:.4f}  {measures}  {rate:,.0f} {unit}")

    def _save(self) -> Path | None:
        """Save a checkpoint of this step; returns its path on rank 0 of a run with a folder."""
        if self.folder is None:
            return None
        self._flush()
        self.recorder.memory.enter(timed=False)
        progress = dataclasses.replace(
            self._before,
            step=self.done,
            attempt=self.attempt,
            skipped=self.recorder.skipped,
            seconds=self.seconds(),
            metrics_offset=self.metrics.offset(),
            exact=self.exact,
            facts=self._facts,
            reports=self._proof.reports(),
        )
        path = self._state.save(self.folder.checkpoints, progress, self.check_ours)
        self.event("checkpoint", step=self.done)
        return path

    def _stop(self) -> None:
        path = self._save()
        self.event("stop", step=self.done)
        if self.folder and path:
            self.folder.mark_stopped(path, self.done)
        self._say(f"stopped after step {self.done}, saved in {path}")
        self.profiling.end(self.done)  # may take seconds


def choose_steps(total: int, seed: int, first: int = 1, profiled: range = range(0)) -> set[int]:
    """Steps to observe out of `first` to `total`, counted from 1: the first, the last, and one drawn by the seed. None
    of them is among the `profiled`, which come after the first."""
    if total < first:
        return set()
    drawn = random.Random(f"{seed} {first} {total}").randint(first, total)
    return {first, profiled[0] - 1 if drawn in profiled else drawn, total}
