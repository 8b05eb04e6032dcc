"""The walk over a run's steps, and what happens between them."""

from __future__ import annotations

import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from recipes import metrics, run_folder, sampling
from recipes.metrics import Journal
from recipes.run_folder import RunFolder
from recipes.settings import Settings
from recipes.torch_ import observe, state
from recipes.torch_.devices import World
from recipes.torch_.lookout import Lookout
from recipes.torch_.observe import Witness
from recipes.torch_.precision import StepOutcome
from recipes.torch_.recorder import Recorder
from recipes.torch_.state import Progress, Trained
from recipes.typed import SettingsError

Step = Callable[[torch.Tensor], tuple[torch.Tensor, StepOutcome]]
"""From this rank's sample indices [micro-batches, samples in each] to its mean loss, a scalar, and the outcome."""
Evaluate = Callable[[], Mapping[str, float]]
"""The held-out measures, alike on every rank."""


class Training:
    """One attempt at a run: from its checkpoint, where there is one, to its end or until it is asked to stop.

    Every method is collective: all ranks call it at the same step.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        trained: Trained,
        folder: Path | None,
        samples: int,
        exact: bool,
        seconds: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.world = world
        self.trained = trained
        self.samples = samples
        self.steps_per_epoch = samples // settings.batch
        if self.steps_per_epoch == 0:
            raise SettingsError(
                f"batch={settings.batch} is more than the {samples} samples of data={settings.data.name}", "batch"
            )
        self.total = settings.steps or (settings.epochs or 1) * self.steps_per_epoch
        launched = os.environ.get("LAUNCHER_ATTEMPT")
        if folder and launched and world.rank == 0:
            RunFolder(path=folder, attempt=int(launched)).check_ours()
        resumed = state.resume(folder / "checkpoints", trained, settings, world) if folder else None
        before, self.resumed_from = resumed or (Progress(exact=exact), None)
        if before.step > self.total:
            raise SettingsError(
                f"the run in {folder} has done {before.step} steps, and this asks for {self.total} in all; "
                "say more epochs or steps",
                "steps" if settings.steps else "epochs",
            )
        self.first = self.done = before.step
        self.attempt = int(launched) if launched else run_folder.next_attempt(folder, before.attempt)
        self.exact = exact and before.exact
        self.recorder = Recorder(world, settings.batch, before.skipped)
        self.folder = RunFolder(path=folder, attempt=self.attempt) if folder else None
        self.journal = self._open_journal(before)
        self._before = before
        self._seconds = seconds
        self._say = say
        self._witness = Witness(trained.model, trained.precision)
        self._planned = observe.choose_steps(self.total, settings.seed, self.first + 1)
        self._epoch: list[dict[str, Any]] = []

    def run(self, step: Step, evaluate: Evaluate | None) -> bool:
        """Take the steps that are left. Returns whether the end was reached; if not, a request to stop was met."""
        self._begin()
        warm = self.first + metrics.warm_up(self.total - self.first)
        lookout = Lookout(self.world, self.folder and self.folder.stop)
        rate = self.trained.optimizers[0].param_groups[0]
        shares = self._shares(self.first // self.steps_per_epoch)
        for number in range(self.first, self.total):
            if lookout.due(number):
                self._flush()
                if lookout.look(number):
                    self._stop()
                    return False
            epoch, within = divmod(number, self.steps_per_epoch)
            if within == 0:
                shares = self._shares(epoch)
            watched = number + 1 in self._planned
            self.recorder.begin()
            with self._witness.step(number + 1) if watched else nullcontext():
                loss, outcome = step(shares[within])
            timed = number >= warm and not watched
            self.recorder.end(number=number + 1, epoch=epoch, loss=loss, lr=rate["lr"], outcome=outcome, timed=timed)
            self.done = number + 1
            if within + 1 == self.steps_per_epoch or self.done == self.total:
                self._end_epoch(epoch, evaluate)
            every = self.settings.checkpoint.every
            if self.done == self.total or (every and self.done % every == 0):
                self._save()
        return True

    def observed(self) -> dict[str, Any]:
        """result.json's "observed": the verdict over all ranks, and over all steps seen since the run began."""
        reports = [*self._before.reports, *observe.gather(self._witness.reports)]
        planned = self._planned if self.done == self.total else set()
        return observe.observed(reports, planned)

    def seconds(self) -> float:
        """That all attempts took."""
        return self._before.seconds + self._seconds()

    def event(self, name: str, **values: Any) -> None:
        self.check_ours()
        self.journal.append([{"event": name, **values, "time": time.time()}])

    def check_ours(self) -> None:
        """Raise `Superseded` on rank 0 if the run folder is another attempt's now; the other ranks end with it."""
        if self.folder and self.world.rank == 0:
            self.folder.check_ours()

    def _open_journal(self, before: Progress) -> Journal:
        if self.folder is None or self.world.rank:
            return Journal(None)
        self.folder.create()
        self.check_ours()
        return Journal(self.folder.metrics, before.metrics_offset)

    def _begin(self) -> None:
        if self.resumed_from is not None:
            self._say(f"goes on after step {self.first} from {self.resumed_from}")
        self.event(
            "start",
            attempt=self.attempt,
            total_steps=self.total,
            epochs=self.settings.epochs,
            resumed_from=self.first if self.resumed_from else None,
            world_size=self.world.size,
            device=str(self.world.device),
        )

    def _shares(self, epoch: int) -> torch.Tensor:
        """This rank's sample indices of an epoch, on the device: [steps, micro-batches, samples in each]."""
        order = sampling.order(self.settings.seed, epoch, self.samples)
        mine = sampling.share(order, self.settings.batch, self.settings.accumulate, self.world.rank, self.world.size)
        return torch.from_numpy(mine.copy()).to(self.world.device)

    def _flush(self) -> None:
        rows = self.recorder.flush()
        self._epoch += rows
        self.check_ours()
        self.journal.append(rows)

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        self._flush()
        rows, self._epoch = self._epoch, []
        held_out = evaluate() if evaluate else {}
        if held_out:
            self.event("eval", step=self.done, epoch=epoch, **held_out)
        measures = "  ".join(f"held-out {name} {value:.4f}" for name, value in held_out.items())
        loss = statistics.fmean(row["loss"] for row in rows)
        rate = statistics.fmean(row["samples_per_second"] for row in rows)
        epochs = -(-self.total // self.steps_per_epoch)
        self._say(f"epoch {epoch + 1:>{len(str(epochs))}}/{epochs}  loss {loss:.4f}  {measures}  {rate:,.0f} samples/s")

    def _save(self) -> Path | None:
        """A checkpoint of this very step; its path, on rank 0 in a run folder."""
        if self.folder is None:
            return None
        self._flush()
        progress = dataclasses.replace(
            self._before,
            step=self.done,
            attempt=self.attempt,
            skipped=self.recorder.skipped,
            seconds=self.seconds(),
            metrics_offset=self.journal.offset(),
            exact=self.exact,
            reports=[*self._before.reports, *observe.gather(self._witness.reports)],
        )
        path = state.save(self.folder.checkpoints, self.trained, progress, self.settings, self.world, self.check_ours)
        self.event("checkpoint", step=self.done)
        return path

    def _stop(self) -> None:
        path = self._save()
        self.event("stop", step=self.done)
        if self.folder and path:
            self.folder.mark_stopped(path, self.done)
        self._say(f"stopped on request after step {self.done}, saved in {path}")
