"""What a run writes while it trains: metrics.jsonl with rows of steps and events, and the record for `verify`."""

from __future__ import annotations

import statistics
import time
from typing import Any

from amp_launcher import metrics
from amp_launcher.loop.attempt import Attempt
from amp_launcher.loop.divergence import Detector
from amp_launcher.loop.protocols import State
from amp_launcher.loop.recorder import Recorder
from amp_launcher.metrics import MetricsWriter
from amp_launcher.step_record import StepRecord
from amp_launcher.world.world import ProcessGroup


class Journal:
    """Every method is collective, and raises `Superseded` on rank 0 where the run folder is another attempt's now: the
    other ranks end with it."""

    def __init__(
        self, attempt: Attempt, group: ProcessGroup, recorder: Recorder, divergence: Detector, *, record: bool
    ) -> None:
        """`record`: keep what `verify` compares."""
        self.recorder = recorder
        self._attempt = attempt
        self._group = group
        self._divergence = divergence
        self._epoch: list[dict[str, Any]] = []
        folder = attempt.folder
        if folder and group.rank == 0:
            folder.create()
            self.check_ours()
        written = folder.metrics if folder and group.rank == 0 else None
        self.metrics = MetricsWriter(written, attempt.before.metrics_offset)
        self._record: StepRecord | None = None
        if folder and record:
            group.broadcast(None)  # rank 0 has made the folder
            self._record = StepRecord(folder.path, group.rank, attempt.facts, attempt.first)

    def check_ours(self) -> None:
        if self._attempt.folder and self._group.rank == 0:
            self._attempt.folder.check_ours()

    def event(self, name: str, **values: Any) -> None:
        self.check_ours()
        self.metrics.append([{"event": name, **values, "time": time.time()}])

    def begin(self, state: State) -> None:
        """The attempt begins. A replay records the state that rank 0 loaded; that of other ranks is in no
        checkpoint."""
        attempt = self._attempt
        if self._record and attempt.replays and attempt.first and self._group.rank == 0:
            self._record.add(attempt.first, state.digests())
            self._record.write([{"step": attempt.first, "loss": None, "grad_norm": None}])
        self.event(
            "start",
            attempt=attempt.number,
            total_steps=attempt.last,
            epochs=attempt.epochs,
            resumed_from=attempt.first if attempt.resumed_from else None,
            world_size=self._group.size,
            device=self._group.members[0].device,
        )

    def after(self, step: int, state: State) -> None:
        """The step has been taken."""
        if self._record:
            self._record.add(step, state.digests())

    def flush(self) -> None:
        """Write the rows of the steps since the last flush. Raises `Diverged` where training did."""
        rows = self.recorder.flush()
        self._epoch += rows
        self.check_ours()
        self.metrics.append(rows)
        if self._record:
            self._record.write(rows)
        self._divergence.check_rows(rows)  # before anything is saved of diverged weights

    def epoch(self) -> tuple[float, str]:
        """The mean loss and the mean rate, with its unit, of the steps since the last call."""
        rows, self._epoch = self._epoch, []
        key, unit = next(rate for rate in metrics.RATES if rate[0] in rows[0])
        loss, rate = (statistics.fmean(row[name] for row in rows) for name in ("loss", key))
        return loss, f"{rate:,.0f} {unit}"
