"""One execution of a recipe by this process, from its settings to its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amp_launcher import leave, result, run_folder, settings
from amp_launcher.arguments import Arguments
from amp_launcher.leave import DONE, FAILED, STOPPED
from amp_launcher.loop import result_fields
from amp_launcher.loop.attempt import Attempt
from amp_launcher.loop.profiling import Profiler
from amp_launcher.loop.replay import Replay
from amp_launcher.loop.training import Training
from amp_launcher.loop.utilization import TokenWork
from amp_launcher.precision import gemm_layers
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.result import Result, Status
from amp_launcher.run_folder import Superseded
from amp_launcher.world.device import Device
from amp_launcher.world.world import ProcessGroup

if TYPE_CHECKING:
    import numpy

HELD_OUT_BATCH = 1000

Memory = Mapping[str, Any]
"""The result's fields of memory, in bytes."""


class Run(ABC):
    """The settings, the resolved precision and this process's rank.

    Each framework's own `Run` adds how a model is wrapped and what one step is made of.
    """

    framework: str
    precision: Any
    """The framework's `Precision`."""
    deterministic: bool

    def __init__(self, chosen: Arguments, world: ProcessGroup, device: Device, devices: int, began: float) -> None:
        """`devices` is the number of devices over all ranks; `began` the process's start on the monotonic clock."""
        self.settings = chosen.settings
        settings.check_settings(self.settings, devices)
        self.world = world
        self.device = device
        self.exit_code = DONE
        self.devices = devices
        self.plan = chosen.plan
        self.folder = chosen.run
        self._began = began
        self.training: Training | None = None
        """Once it has begun: a step may have run."""
        self.replay: Replay | None = None
        self.replayed: dict[str, Any] = {}
        """result.json's "verify"."""
        self.data_digest = ""
        self.work: TokenWork | None = None

    @classmethod
    @abstractmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        """Join the other ranks of the job, and make the run. Raises `SettingsError` and `PlacementError`."""

    @property
    def mode(self) -> ResolvedPrecision:
        """The resolved precision."""
        resolved: ResolvedPrecision = self.precision.resolved
        return resolved

    def held_out(self, count: int, at_once: int = HELD_OUT_BATCH) -> Iterator[numpy.ndarray]:
        """This process's share of the indices of `count` held-out samples, at most `at_once` at a time."""
        import numpy

        own = numpy.arange(self.world.rank, count, self.world.size)
        for first in range(0, len(own), at_once):
            yield own[first : first + at_once]

    def profiler(self) -> Profiler | None:
        """The profiler, if one was asked for and the framework has it."""
        return None

    @property
    def converted(self) -> gemm_layers.Chosen | None:
        """The linear layers that `amp.gemm` converted and left out; None at half."""
        return None

    def say(self, *lines: str) -> None:
        """Lines for people, from rank 0."""
        if self.world.rank == 0 and lines:
            print(*lines, sep="\n", flush=True)

    def leave_first_failure(self, reason: str, trace: str = "") -> None:
        """The same where another rank may have failed first: the first one's reason is recorded."""
        self.leave_failure(run_folder.first_failure(self.folder, self.world.rank, reason, trace=trace))

    def give_up(self, reason: str) -> None:
        """End the process from a thread beside training, which hangs."""
        self.leave_first_failure(reason)
        print(f"{self.settings.recipe}: {reason}", file=sys.stderr, flush=True)
        leave.end_now(FAILED)

    def leave_failure(self, reason: str) -> None:
        """Write a failed result with the reason, if training had begun. Not collective."""
        if self.training is not None:
            observed = {"verdict": "unknown", "why": "the run broke off"}
            journal = self.training.journal
            memory = journal.recorder.memory.fields()
            self.training.profiling.end(self.training.done)
            with contextlib.suppress(Superseded):
                self.leave_result(reason, observed, memory, journal.metrics.summary.loss_scale)

    def seconds(self, attempt: Attempt) -> float:
        """Time of all attempts."""
        return attempt.before.seconds + time.monotonic() - self._began

    def leave_result(
        self, reason: str | None, observed: dict[str, Any], memory: Memory, scale: float | None
    ) -> Result | None:
        """Write the result of a run that failed for this reason, if there is one. Returns it on rank 0."""
        training = self.training
        if training is None or self.world.rank:
            return None
        status: Status = "failed" if reason is not None else "stopped" if self.exit_code == STOPPED else "done"
        record = self._result(training, status, reason, observed, memory, scale)
        if folder := training.attempt.folder:
            training.journal.event("end", step=training.done, status=status)
            training.journal.check_ours()
            result.write(folder.result, record)
        return record

    def _result(
        self,
        training: Training,
        status: Status,
        reason: str | None,
        observed: dict[str, Any],
        memory: Memory,
        scale: float | None,
    ) -> Result:
        attempt, summary, hardware = training.attempt, training.journal.metrics.summary, self.device.hardware()
        return Result(
            run=os.environ.get("LAUNCHER_RUN_ID") or (attempt.folder.path.resolve().name if attempt.folder else None),
            status=status,
            reason=reason,
            attempts=attempt.number,
            framework=self.framework,
            recipe=self.settings.recipe,
            mechanism=self.mode.mechanism,
            requested=result_fields.requested(self.settings),
            effective=result_fields.effective(self.settings, self.mode, self.deterministic),
            observed=observed,
            throughput=result_fields.throughput(
                summary, observed.get("step_flops"), self.work, self.mode, hardware["gpu"], self.devices
            ),
            **memory,
            loss={"first": summary.first_loss, "last": summary.last_loss},
            eval=summary.evaluation,
            loss_scale={"final": scale, "skipped_steps": summary.skipped},
            updates={"attempted": summary.steps, "applied": summary.steps - summary.skipped},
            epochs=self.settings.epochs,
            steps=summary.steps,
            wall_seconds=self.seconds(attempt),
            world_size=self.devices,
            determinism="exact" if attempt.exact else "best_effort",
            resumed_from=attempt.first if attempt.resumed_from else None,
            profile=training.profiling.record,
            verify=self.replayed,
            versions=self.device.versions(),
            digests=result_fields.digests(self.plan, self.data_digest),
            hardware=hardware,
        )
