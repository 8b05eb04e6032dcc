"""The wrapper around a user's own script in any framework: runs the file, observes it, and writes the result.

python -m recipes.torch_.script amp=o1 script=train.py workdir=. -- --lr 0.1 data/
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes import arguments, result, run_folder, script_log, script_source, settings
from recipes.arguments import Arguments
from recipes.divergence import Detector
from recipes.precision import verdict
from recipes.result import Result, Status
from recipes.run_folder import RunFolder, write_json
from recipes.settings import Profile
from recipes.trainer import block as blocks
from recipes.trainer import early, library_records, rank_reports, result_fields, snapshot_path
from recipes.trainer.early import EarlyVerdict
from recipes.trainer.profiling import Profiling
from recipes.trainer.run import FAILED, REFUSED
from recipes.trainer.script_execution import execute
from recipes.trainer.step_meter import StepMeter
from recipes.trainer.stop_signal import StopSignal
from recipes.trainer.world import PlacementError, rank_and_size, speak
from recipes.trainer.wrapper import Started, Wrapper
from recipes.typed import SettingsError


def main(framework: str, words: Sequence[str], wrap: Callable[[Started], Wrapper]) -> int:
    """Run a script for these words; returns the process's exit code.

    It is the script's own, but 1 if the script succeeded and its proof failed, and 2 if it was not started.
    """
    if "--help" in _ours(words) or "-h" in _ours(words):
        print(arguments.help_text("script", f"recipes.{framework}_.script"))
        print("  script=FILE  the file; arguments after -- are passed to it\n  workdir=FOLDER  where it starts")
        return 0
    began = time.monotonic()
    rank = rank_and_size(framework)[0]
    first = rank == 0
    try:
        started = parse(words, framework)
        wrapper = wrap(started)
    except SettingsError as error:
        print(f"script: {error}", file=sys.stderr)
        return REFUSED
    except PlacementError as error:
        speak(f"script: {error}", first or not error.of_all)
        return FAILED
    if first:
        for line in result_fields.mode_lines(started.chosen.settings, wrapper.mode):
            print(line, flush=True)
    wrapper.tell_early(EarlyVerdict(started.chosen.settings, rank))
    snapshot_path.extend(started.file, started.chosen.plan)
    folder = _folder(started.chosen.run) if first else None
    meter = _meter(started, wrapper, folder)
    request = StopSignal(started.chosen.run, started.chosen.plan, rank)
    once = threading.Lock()

    def end(code: int, failure: str | None, trace: str, *, stopped: bool = False, killed: bool = False) -> int:
        once.acquire()  # and never released: a second caller waits until the process ends
        if killed:
            meter.close()
        sys.stdout.flush()
        if first:
            _adopt_records(meter, started, since=time.time() - (time.monotonic() - began))
        meter.finish(wrapper.skipped_unseen())
        seconds = time.monotonic() - began
        patience = rank_reports.HURRY if killed else rank_reports.PATIENCE if not code or stopped else 0.0
        return _conclude(
            started, wrapper, folder, meter, code, failure, trace, seconds, stopped=stopped, patience=patience
        )

    def give_up() -> int:
        print(f"script: it did not end within {blocks.GRACE:g} s of the end of its block; ended", file=sys.stderr)
        return end(0, None, "")

    meter.when_over = lambda: blocks.end_within(blocks.GRACE, give_up)
    request.conclude = lambda code: end(code, None, "", stopped=not wrapper.early.reason, killed=True)
    with wrapper.around(meter), request:
        code, failure, trace = execute(started.file, started.arguments, started.workdir, started.inputs)
    if meter.over:  # an error of a script that was interrupted by the end of its block is no failure
        code = end(0, None, "")
        blocks.end_within(blocks.GRACE, lambda: code)
        return code
    stopped = not wrapper.early.reason and request.stopped(code, trace)
    return end(code, None if stopped else failure, trace, stopped=stopped)


def _meter(started: Started, wrapper: Wrapper, folder: RunFolder | None) -> StepMeter:
    """The meter of the script's steps; on rank 0 it also gets the script's logs."""
    settings, mode = started.chosen.settings, wrapper.mode
    rank, size = rank_and_size(settings.framework)
    detector = Detector(level=settings.amp.level, mechanism=mode.mechanism, dtype=mode.dtype, scale=mode.loss_scale)
    meter = StepMeter(folder, world_size=size, detector=detector, block=blocks.of(started.chosen))
    meter.memory = wrapper.peak_memory
    script_log.receiver.receive = meter.log if rank == 0 else lambda logged: None
    return meter


def _adopt_records(meter: StepMeter, started: Started, since: float) -> None:
    folders = library_records.folders_of(started.workdir, started.arguments, os.environ)
    records = library_records.read(folders, since)
    if records is not None:
        meter.adopt(records)


def parse(words: Sequence[str], framework: str) -> Started:
    """The words of the wrapper's command line. Raises `SettingsError`."""
    ours = _ours(words)
    own = {key: text for key, _, text in (word.partition("=") for word in ours) if key in ("script", "workdir")}
    rest = [word for word in ours if word.partition("=")[0] not in ("script", "workdir")]
    chosen = arguments.parse(rest, "script", framework, alone=not own and "--" not in words)
    settings.check(chosen.settings)
    passed: Sequence[str] = words[len(ours) + 1 :]
    inputs: Mapping[str, str] = {}
    if planned := chosen.plan.get("script"):
        own = {"script": planned["file"], "workdir": planned["workdir"] or _own_folder(chosen)}
        passed, inputs = [*planned["arguments"], *_resuming(chosen.plan)], planned.get("inputs", {})
    if not own.get("script"):
        raise SettingsError("script=FILE is missing (command line)", "script")
    file = Path(own["script"]).absolute()
    try:
        source = script_source.read(file.read_bytes())
    except OSError as error:
        raise SettingsError(f"script={file}: {error.strerror}", "script") from None
    return Started(
        chosen=chosen,
        file=file,
        workdir=Path(own.get("workdir") or ".").absolute(),
        inputs=inputs,
        arguments=tuple(passed),
        source=source,
    )


def _own_folder(chosen: Arguments) -> str:
    """The folder of the run's own in which its script starts: one for all attempts, so that a later attempt finds the
    files of an earlier one; in a comparison one for each attempt, since each block starts afresh."""
    block = f"/{os.environ['LAUNCHER_ATTEMPT']}" if chosen.plan.get("arm") else ""
    return f"{chosen.run}/work{block}"


def _resuming(plan: Mapping[str, Any]) -> Sequence[str]:
    """Arguments added from the second attempt on; none in a comparison, where each block starts afresh."""
    again = int(os.environ.get("LAUNCHER_ATTEMPT") or 1) > 1 and not plan.get("arm")
    return plan["script"].get("resume_arguments", ()) if again else ()


def _ours(words: Sequence[str]) -> list[str]:
    return list(words[: words.index("--")] if "--" in words else words)


def _conclude(
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
    if profiling.found and profiling.note:
        print(profiling.note, flush=True)
    if asked.tool == "framework" and not profiling.found:
        print(
            f"script: profile=framework recorded nothing: {steps or 'no'} optimizer steps were seen, and "
            f"profile.start={asked.start}",
            file=sys.stderr,
        )


def _folder(run: Path | None) -> RunFolder | None:
    if run is None:
        return None
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    attempt = int(os.environ.get("LAUNCHER_ATTEMPT") or run_folder.next_attempt(run, 0))
    folder = RunFolder(path=run, attempt=attempt)
    (run / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
    return folder


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
        peak_memory_bytes=wrapper.peak_memory(),
        epochs=None,
        **meter.result(),
        wall_seconds=seconds,
        world_size=size,
        determinism="best_effort",
        resumed_from=None,
        profile=wrapper.profile(),
        versions=wrapper.versions(),
        digests={**result_fields.digests(started.chosen.plan, ""), "data": None},
        hardware=wrapper.hardware(),
    )


_UNSEEN = (
    "; its own process took no optimizer step: ranks that a script starts itself are not observed, and "
    "train.processes=N starts N; a script that resumed what it had finished takes none"
)
# Known to the script only.
_UNKNOWN: dict[str, Any] = {"batch": None, "accumulate": None, "deterministic": None}
