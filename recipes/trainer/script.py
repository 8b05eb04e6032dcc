"""The wrapper around a user's own script in any framework: runs the file and observes it.

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

from recipes import arguments, run_folder, script_log, script_source, settings
from recipes.arguments import Arguments
from recipes.divergence import Detector
from recipes.run_folder import RunFolder
from recipes.trainer import block as blocks
from recipes.trainer import library_records, rank_reports, result_fields, snapshot_path
from recipes.trainer.early import EarlyVerdict
from recipes.trainer.run import FAILED, REFUSED
from recipes.trainer.script_end import conclude
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
        return conclude(
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
    meter.memory = wrapper.device.peak_memory
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


def _folder(run: Path | None) -> RunFolder | None:
    if run is None:
        return None
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    attempt = int(os.environ.get("LAUNCHER_ATTEMPT") or run_folder.next_attempt(run, 0))
    folder = RunFolder(path=run, attempt=attempt)
    (run / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
    return folder
