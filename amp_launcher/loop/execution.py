"""One attempt of a run, put together from its parts: begun, trained, judged and recorded."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from amp_launcher.leave import DONE, FAILED, STOPPED
from amp_launcher.loop import messages, proof, replay
from amp_launcher.loop.attempt import begin
from amp_launcher.loop.divergence import Detector
from amp_launcher.loop.journal import Journal
from amp_launcher.loop.profiling import Profiling
from amp_launcher.loop.proof import Proof
from amp_launcher.loop.protocols import Evaluate, Executor, Observer, State
from amp_launcher.loop.recorder import Recorder
from amp_launcher.loop.replay import Replay
from amp_launcher.loop.run import Memory, Run
from amp_launcher.loop.saving import Saving
from amp_launcher.loop.spans import Spans
from amp_launcher.loop.training import Training
from amp_launcher.loop.utilization import TokenWork
from amp_launcher.precision import verdict
from amp_launcher.watchdog import Watchdog
from amp_launcher.world.preemption import StopPoller, catch_term


def train(
    run: Run,
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
    run.data_digest, run.work = data_digest, work
    settings, world, folder = run.settings, run.world, run.folder
    facts = {
        "cpu": run.device.hardware()["cpu"],
        "data": data_digest,
        "parallel": run.mode.parallel,
        "code": run.plan.get("code"),
        "versions": run.device.versions(),
    }
    request = replay.request_of(run.plan)
    attempt = begin(
        settings,
        world,
        state,
        samples,
        facts,
        same_data=data_digest if same_data and request is None else "",
        exact=run.deterministic,
        folder=folder,
        replay=request,
    )
    if request and folder:
        request = dataclasses.replace(request, first=min(request.first, attempt.first))
        run.replay = Replay(request, folder, world, state)
    recorder = Recorder(world, run.device, settings.batch_size, attempt.before.skipped, work.per_sample if work else 0)
    divergence = Detector(
        level=settings.amp.level,
        mechanism=run.mode.mechanism,
        dtype=run.mode.dtype,
        scale=run.mode.loss_scale,
    )
    profiling = Profiling(settings.profile, run.profiler(), folder)
    profiling.choose_within(attempt.first + 1, attempt.last, settings.checkpoint.stop_every)
    checks = Proof(
        settings=settings,
        group=world,
        observer=observer,
        before=attempt.before.reports,
        planned=proof.choose_steps(attempt.last, settings.seed, attempt.first + 1, profiling.steps),
        say=run.say,
    )
    journal = Journal(attempt, world, recorder, divergence, record=settings.verify.record)
    saving = Saving(attempt, state, journal, checks, lambda: run.seconds(attempt))
    training = run.training = Training(Spans(settings, attempt), saving, profiling, run.say)
    run.say(*messages.introduction(run, training, data))
    if run.replay and (problem := run.replay.not_comparable(attempt.facts)):
        unknown = {"verdict": "unknown", "why": "nothing was replayed"}
        _leave_replayed(run, problem, unknown, recorder.memory.fields())
        return
    with Watchdog(lambda: training.done, settings, folder, world.rank, run.give_up).watching():
        catch_term()
        run.say(*messages.resumption(training))
        journal.begin(state)
        reached = training.run(executor, evaluate, StopPoller(world, attempt.folder.stop if attempt.folder else None))
    observed = _observed(training)
    memory = recorder.memory.fields(world)
    if reached and run.replay and training.done == attempt.last:
        _leave_replayed(run, run.replay.verdict(), observed, memory)
        return
    if not reached:
        run.exit_code = STOPPED
        run.leave_result(None, observed, memory, run.precision.scale)
        return
    why = observed["why"]
    if training.done < attempt.last:
        why += f"; so it ended after step {training.done:,} of {attempt.last:,}"
    failed = proof.problem(settings.amp.level, settings.proof_required, observed["verdict"], why)
    run.exit_code = FAILED if failed else DONE
    if record := run.leave_result(failed, observed, memory, run.precision.scale):
        run.say(*messages.conclusion(record, attempt.folder))
    if failed and world.rank == 0:
        print(f"{settings.recipe}: {failed}", file=sys.stderr)


def _observed(training: Training) -> dict[str, Any]:
    """result.json's "observed": the verdict over all ranks, and over all steps seen since the run began."""
    judged = training.proof.judged(complete=training.done == training.attempt.last)
    skipped = training.journal.recorder.skipped
    return verdict.without_updates(judged, training.done) if 0 < training.done == skipped else judged


def _leave_replayed(run: Run, found: dict[str, Any], observed: dict[str, Any], memory: Memory) -> None:
    """End a replay with what it says of the run."""
    run.replayed = found
    sentence = f"{found['verdict']}: {found['why']}"
    same = found["verdict"] == replay.SAME
    run.exit_code = DONE if same else FAILED
    run.leave_result(None if same else sentence, observed, memory, run.precision.scale)
    run.say(sentence)
