"""The end of a user's script: the verdict over all ranks, its result, and the exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

from recipes import result, run_folder
from recipes.precision import verdict
from recipes.result import Result, Status
from recipes.run_folder import RunFolder, write_json
from recipes.settings import Profile
from recipes.trainer import early, rank_reports, result_fields
from recipes.trainer.profiling import Profiling
from recipes.trainer.run import FAILED
from recipes.trainer.step_meter import StepMeter
from recipes.trainer.world import rank_and_size
from recipes.trainer.wrapper import Started, Wrapper


def conclude(
    started: Started,
    wrapper: Wrapper,
    folder: RunFolder | None,
    meter: StepMeter,
    code: int,
    failure: str | None,
    trace: str,
    seconds: float,
    *,
    stopped: bool,
    patience: float,
) -> int:
    """Judge the reports of all ranks, write the result, and return the exit code. `stopped`: the script ended because
    it was asked to. `patience`: seconds to wait for the other ranks."""
    settings, run = started.chosen.settings, started.chosen.run
    rank, size = rank_and_size(settings.framework)
    reports = wrapper.reports()
    if wrapper.early.reason and code:  # the script, or its library, may have raised another exception
        failure, trace = wrapper.early.reason, ""
    first = run_folder.first_failure(run, rank, failure, trace=trace) if failure and size > 1 else None
    if rank:
        if run:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            report = {"reports": reports, "failure": failure and f"on rank {rank}, {failure}"}
            write_json(rank_reports.path_of(run, rank), {**report, "observed": wrapper.early.observed})
        if wrapper.early.reason:
            rank_reports.await_first(run and rank_reports.path_of(run, rank), f"on rank {rank}, {failure}")
        return code
    others, elsewhere, observed = [], None, wrapper.early.observed
    if size > 1 and run:
        others, elsewhere, theirs = rank_reports.collect(run, size, patience)
        observed = observed or theirs
    if stopped and elsewhere:
        print(f"script: {elsewhere}, after it was asked to stop", file=sys.stderr)
        elsewhere = None
    # A failure here that follows from another rank's end is not why the job failed. Without the launcher's number of
    # the attempt, the first failed rank is unknown.
    failed = (first if os.environ.get("LAUNCHER_ATTEMPT") else None) or elsewhere or failure
    if not failed:
        observed = verdict.observed([*reports, *others], share=settings.proof.share)
        if settings.framework == "torch" and not reports and not others and not meter.steps:
            observed["why"] += _UNSEEN
    elif not observed:
        observed = {"verdict": "unknown", "why": "the script failed"}
    level, required = settings.amp.level, settings.require_proof
    problem = failed
    if not failed and not stopped:
        unmeasured = None if observed["verdict"] == verdict.CONTRADICTED else _block_problem(meter)
        problem = unmeasured or early.problem(level, required, observed["verdict"], observed["why"])
        if not problem:
            meter.end_block()
    if folder:
        folder.check_ours()
        status: Status = "failed" if problem else "stopped" if stopped else "done"
        result.write(folder.result, _result(started, wrapper, folder, meter, observed, status, problem, seconds, size))
    if wrapper.profiling and not failed:
        _tell_of_profile(wrapper.profiling, settings.profile, meter.steps)
    if not failed:
        print(meter.sentence(), flush=True)
    print(f"amp={settings.amp.level} {observed['verdict']}: {observed['why']}", flush=True)
    if problem and (problem != failure or wrapper.early.reason):
        reason = f": {observed['why']}"  # printed already
        print(f"script: {problem.replace(reason, '')}", file=sys.stderr)
    return code or (FAILED if problem else 0)


def _tell_of_profile(profiling: Profiling, asked: Profile, steps: int | None) -> None:
    """Report on a requested profile: the number of the script's steps was not known beforehand."""
    if profiling.record and profiling.note:
        print(profiling.note, flush=True)
    if asked.tool == "framework" and not profiling.record:
        print(
            f"script: profile=framework recorded nothing: {steps or 'no'} optimizer steps were seen, and "
            f"profile.start={asked.start}",
            file=sys.stderr,
        )


def _block_problem(meter: StepMeter) -> str | None:
    """Why a block of a comparison has no measured step; None if it has one."""
    if not meter.in_block or meter.timed:
        return None
    if not meter.counted:
        return f"nothing can be compared: {meter.result()['throughput']['why']}"
    return "nothing can be compared: the script ended before a step after the warm-up was timed"


def _result(
    started: Started,
    wrapper: Wrapper,
    folder: RunFolder,
    meter: StepMeter,
    observed: dict[str, Any],
    status: Status,
    problem: str | None,
    seconds: float,
    size: int,
) -> Result:
    settings = started.chosen.settings
    asked = {**result_fields.requested(settings), **_UNKNOWN}
    return Result(
        run=os.environ.get("LAUNCHER_RUN_ID") or folder.path.resolve().name,
        status=status,
        reason=problem,
        attempts=folder.attempt,
        framework=settings.framework,
        recipe="script",
        mechanism=wrapper.mechanism(),
        requested=asked,
        effective={**result_fields.effective(settings, wrapper.mode, False), **_UNKNOWN},
        observed=observed,
        peak_memory_bytes=wrapper.device.peak_memory(),
        epochs=None,
        **meter.result(),
        wall_seconds=seconds,
        world_size=size,
        determinism="best_effort",
        resumed_from=None,
        profile=wrapper.profile(),
        versions=wrapper.device.versions(),
        digests={**result_fields.digests(started.chosen.plan, ""), "data": None},
        hardware=wrapper.device.hardware(),
    )


_UNSEEN = (
    "; its own process took no optimizer step: ranks that a script starts itself are not observed, and "
    "train.processes=N starts N; a script that resumed what it had finished takes none"
)
# Known to the script only.
_UNKNOWN: dict[str, Any] = {"batch": None, "accumulate": None, "deterministic": None}
