"""One execution of a recipe by this process: its messages and its result."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from amp_launcher import leave, result, run_folder, settings
from amp_launcher.arguments import Arguments
from amp_launcher.loop import proof, replay, result_fields
from amp_launcher.loop.attempt import Attempt, begin
from amp_launcher.loop.divergence import Detector
from amp_launcher.loop.journal import Journal
from amp_launcher.loop.profiling import Profiler, Profiling
from amp_launcher.loop.proof import Proof
from amp_launcher.loop.protocols import Evaluate, Executor, Observer, State
from amp_launcher.loop.recorder import Recorder
from amp_launcher.loop.replay import Replay
from amp_launcher.loop.saving import Saving
from amp_launcher.loop.spans import Spans
from amp_launcher.loop.training import Training
from amp_launcher.loop.utilization import TokenWork, matrix_share, utilization
from amp_launcher.metrics import Summary
from amp_launcher.precision import gemm_layers, verdict
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.result import Result, Status
from amp_launcher.run_folder import Superseded
from amp_launcher.watchdog import Watchdog
from amp_launcher.world.device import Device
from amp_launcher.world.preemption import StopPoller, catch_term
from amp_launcher.world.world import ProcessGroup, table

if TYPE_CHECKING:
    import numpy

DONE, FAILED, REFUSED, STOPPED, INTERRUPTED = 0, 1, 2, 85, 130
HELD_OUT_BATCH = 1000

Memory = Mapping[str, int | None]
"""The result's fields of memory, in bytes."""


class Run(ABC):
    """The settings, the resolved precision and this process's rank.

    Each framework's own `Run` adds how a model is wrapped and what one step is made of.
    """

    framework: str
    precision: Any
    """The framework's `Precision`."""

    def __init__(self, chosen: Arguments, world: ProcessGroup, device: Device, devices: int, began: float) -> None:
        """`devices` is the number of devices over all ranks; `began` the process's start on the monotonic clock."""
        self.settings = chosen.settings
        settings.check(self.settings, devices)
        self.world = world
        self.device = device
        self.exit_code = DONE
        self.deterministic = False
        self._devices = devices
        self._chosen = chosen
        self._began = began
        self._training: Training | None = None
        self._replay: Replay | None = None
        self._data_digest = ""
        self._work: TokenWork | None = None
        self._verdict: dict[str, Any] = {}

    @classmethod
    @abstractmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        """Join the other ranks of the job, and make the run. Raises `SettingsError` and `PlacementError`."""

    @property
    def mode(self) -> ResolvedPrecision:
        """The resolved precision."""
        resolved: ResolvedPrecision = self.precision.resolved
        return resolved

    @property
    def training(self) -> bool:
        """Whether training has begun: a step may have run."""
        return self._training is not None

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

    def say(self, text: str) -> None:
        """A line for people, from rank 0."""
        if self.world.rank == 0:
            print(text, flush=True)

    def leave_first_failure(self, reason: str, trace: str = "") -> None:
        """The same where another rank may have failed first: the first one's reason is recorded."""
        self.leave_failure(run_folder.first_failure(self._chosen.run, self.world.rank, reason, trace=trace))

    def leave_failure(self, reason: str) -> None:
        """Write a failed result with the reason, if training had begun. Not collective."""
        if self._training is not None:
            observed = {"verdict": "unknown", "why": "the run broke off"}
            journal = self._training.journal
            memory = journal.recorder.memory.fields()
            self._training.profiling.end(self._training.done)
            with contextlib.suppress(Superseded):
                self._leave_result(reason, observed, memory, journal.metrics.summary.loss_scale)

    def _train(
        self,
        *,
        state: State,
        observer: Observer,
        executor: Executor,
        evaluate: Evaluate | None,
        samples: int,
        data: str,
        data_digest: str,
        same_data: bool = False,
        work: TokenWork | None = None,
    ) -> None:
        """Train to the end, or until asked to stop, and write the result; sets `exit_code`."""
        self._data_digest, self._work = data_digest, work
        settings, world, folder = self.settings, self.world, self._chosen.run
        facts = {
            "cpu": self.device.hardware()["cpu"],
            "data": data_digest,
            "parallel": self.mode.parallel,
            "code": self._chosen.plan.get("code"),
            "versions": self.device.versions(),
        }
        request = replay.request_of(self._chosen.plan)
        attempt = begin(
            settings,
            world,
            state,
            samples,
            facts,
            same_data=data_digest if same_data and request is None else "",
            exact=self.deterministic,
            folder=folder,
            replay=request,
        )
        if request and folder:
            request = dataclasses.replace(request, first=min(request.first, attempt.first))
            self._replay = Replay(request, folder, world, state)
        recorder = Recorder(world, self.device, settings.batch, attempt.before.skipped, work.per_sample if work else 0)
        divergence = Detector(
            level=settings.amp.level,
            mechanism=self.mode.mechanism,
            dtype=self.mode.dtype,
            scale=self.mode.loss_scale,
        )
        profiling = Profiling(settings.profile, self.profiler(), folder)
        profiling.choose_within(attempt.first + 1, attempt.last, settings.checkpoint.stop_every)
        checks = Proof(
            settings=settings,
            group=world,
            observer=observer,
            before=attempt.before.reports,
            planned=proof.choose_steps(attempt.last, settings.seed, attempt.first + 1, profiling.steps),
            say=self.say,
        )
        journal = Journal(attempt, world, recorder, divergence, record=settings.verify.record)
        saving = Saving(attempt, state, journal, checks, lambda: self._seconds(attempt))
        training = self._training = Training(Spans(settings, attempt), saving, profiling, self.say)
        self._introduce(training, data)
        if self._replay and (problem := self._replay.not_comparable(attempt.facts)):
            unknown = {"verdict": "unknown", "why": "nothing was replayed"}
            self._leave_verdict(problem, unknown, recorder.memory.fields())
            return
        with Watchdog(lambda: training.done, settings, folder, world.rank, self._give_up).watching():
            catch_term()
            self._begin(training)
            reached = training.run(executor, evaluate, StopPoller(world, attempt.folder and attempt.folder.stop))
        observed = self._observed(training)
        memory = recorder.memory.fields(self.world)
        if reached and self._replay and training.done == attempt.last:
            self._leave_verdict(self._replay.verdict(), observed, memory)
            return
        if not reached:
            self.exit_code = STOPPED
            self._leave_result(None, observed, memory, self.precision.scale)
            return
        problem = self._proof_problem(observed, training)
        self.exit_code = FAILED if problem else DONE
        self._leave_result(problem, observed, memory, self.precision.scale)
        self._conclude(training, observed, memory)
        if problem and self.world.rank == 0:
            print(f"{self.settings.recipe}: {problem}", file=sys.stderr)

    def _begin(self, training: Training) -> None:
        attempt, journal = training.attempt, training.journal
        lost = attempt.first - journal.metrics.summary.steps
        if attempt.resumed_from is not None:
            self.say(f"resumed after step {attempt.first} from {attempt.resumed_from}")
            if lost > 0 and not attempt.replays:
                self.say(f"metrics.jsonl is damaged: it lacks {lost} of those steps, and so does what sums them up")
        journal.begin(training.saving.state)

    def _seconds(self, attempt: Attempt) -> float:
        """Time of all attempts."""
        return attempt.before.seconds + time.monotonic() - self._began

    @staticmethod
    def _observed(training: Training) -> dict[str, Any]:
        """result.json's "observed": the verdict over all ranks, and over all steps seen since the run began."""
        judged = training.proof.judged(complete=training.done == training.attempt.last)
        skipped = training.journal.recorder.skipped
        return verdict.without_updates(judged, training.done) if 0 < training.done == skipped else judged

    def _give_up(self, reason: str) -> None:
        """End the process from a thread beside training, which hangs."""
        self.leave_first_failure(reason)
        print(f"{self.settings.recipe}: {reason}", file=sys.stderr, flush=True)
        leave.end_now(FAILED)

    def _leave_verdict(self, found: dict[str, Any], observed: dict[str, Any], memory: Memory) -> None:
        """End a replay with what it says of the run."""
        self._verdict = found
        sentence = f"{found['verdict']}: {found['why']}"
        same = found["verdict"] == replay.SAME
        self.exit_code = DONE if same else FAILED
        self._leave_result(None if same else sentence, observed, memory, self.precision.scale)
        self.say(sentence)

    def _leave_result(self, reason: str | None, observed: dict[str, Any], memory: Memory, scale: float | None) -> None:
        """Write the result of a run that failed for this reason, if there is one."""
        status: Status = "failed" if reason is not None else "stopped" if self.exit_code == STOPPED else "done"
        training = self._training
        if training is None or training.attempt.folder is None or self.world.rank:
            return
        attempt, journal, folder = training.attempt, training.journal, training.attempt.folder
        journal.event("end", step=training.done, status=status)
        summary = journal.metrics.summary
        record = Result(
            run=os.environ.get("LAUNCHER_RUN_ID") or folder.path.resolve().name,
            status=status,
            reason=reason,
            attempts=attempt.number,
            framework=self.framework,
            recipe=self.settings.recipe,
            mechanism=self.mode.mechanism,
            requested=result_fields.requested(self.settings),
            effective=result_fields.effective(self.settings, self.mode, self.deterministic),
            observed=observed,
            throughput=self._throughput(summary, observed),
            **memory,
            loss={"first": summary.first_loss, "last": summary.last_loss},
            eval=summary.evaluation,
            loss_scale={"final": scale, "skipped_steps": summary.skipped},
            updates={"attempted": summary.steps, "applied": summary.steps - summary.skipped},
            epochs=self.settings.epochs,
            steps=summary.steps,
            wall_seconds=self._seconds(training.attempt),
            world_size=self._devices,
            determinism="exact" if attempt.exact else "best_effort",
            resumed_from=attempt.first if attempt.resumed_from else None,
            profile=training.profiling.record,
            verify=self._verdict,
            versions=self.device.versions(),
            digests=result_fields.digests(self._chosen.plan, self._data_digest),
            hardware=self.device.hardware(),
        )
        journal.check_ours()
        result.write(folder.result, record)

    def _introduce(self, training: Training, data: str) -> None:
        settings = self.settings
        if len(self.world.members) > 1:
            self.say(table(self.world.members))
        repeats = "deterministic" if self.deterministic else "not deterministic"
        self.say(f"{settings.recipe} on {data}")
        self.say(f"{self.device.where()}, seed {settings.seed}, {repeats}")
        for line in result_fields.mode_lines(settings, self.mode):
            self.say(line)
        if chosen := self.converted:
            self.say(gemm_layers.line(settings.amp.gemm, *chosen))
        parts = [f"batch {settings.batch}"]
        if self._devices > 1:
            parts.append(f"over {self._devices} {'ranks' if self._devices == self.world.size else 'devices'}")
            if self.mode.framework == "torch":
                parts.append(f"by {self.mode.parallel}")
        elif self.mode.parallel == "fsdp":
            parts.append("on one rank, which holds all shards")
        if settings.accumulate > 1:
            parts.append(f"in {settings.accumulate} micro-batches")
        self.say(f"{' '.join(parts)}, {_steps(training.attempt.last)}")
        if self._replay:
            asked = self._replay.request
            self.say(f"replay of steps {asked.first + 1} to {asked.step} of {asked.run}")
        if training.profiling.note:
            self.say(training.profiling.note)

    def _conclude(self, training: Training, observed: dict[str, Any], memory: Memory) -> None:
        summary = training.journal.metrics.summary
        facts = [f"held-out {name} {value:.4f}" for name, value in summary.evaluation.items()]
        throughput = self._throughput(summary, observed)
        if throughput["mean"] is not None:
            facts.append(f"{throughput['mean']:,.0f} {throughput['unit']}")
        if throughput.get("mfu") is not None:
            facts.append(f"{throughput['mfu']:.1%} of peak FLOPs")
        facts.append(f"{(memory['peak_memory_bytes'] or 0) / 2**20:,.0f} MiB at most")
        if summary.skipped:
            facts.append(f"{_steps(summary.skipped)} skipped on overflow")
        self.say(f"{_steps(summary.steps)} in {self._seconds(training.attempt):.1f} s: {', '.join(facts)}")
        self.say(f"amp={self.settings.amp.level} {observed['verdict']}: {observed['why']}")
        if folder := training.attempt.folder:
            self.say(f"result in {folder.result}")

    def _throughput(self, summary: Summary, observed: dict[str, Any]) -> dict[str, Any]:
        """result.json's "throughput"."""
        throughput = summary.throughput()
        share = matrix_share(observed.get("step_flops"), summary.step_seconds, self.device.hardware()["gpu"])
        if share is not None:
            throughput["matrix_share"] = share
        if self._work is None:
            return throughput
        dtype = "tf32" if self.mode.dtype == "float32" and self.mode.tf32 else self.mode.dtype
        gpu, gemm = self.device.hardware()["gpu"], self.mode.gemm
        share = utilization(throughput["mean"], self._work, gpu, dtype, self._devices, gemm)
        return {**throughput, "unit": "tokens/s", "mfu": share, "flops_per_token": self._work.flops}

    def _proof_problem(self, observed: dict[str, Any], training: Training) -> str | None:
        """Why the proof fails the run, in one sentence."""
        why = observed["why"]
        if training.done < training.attempt.last:
            why += f"; so it ended after step {training.done:,} of {training.attempt.last:,}"
        return proof.problem(self.settings.amp.level, self.settings.proof_required, observed["verdict"], why)


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count != 1)}"
