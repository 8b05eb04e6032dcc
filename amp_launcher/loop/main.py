"""A trainer's start and end, for every framework."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar, cast

from amp_launcher import arguments, leave, run_folder
from amp_launcher.arguments import Arguments
from amp_launcher.leave import DONE, FAILED, INTERRUPTED, REFUSED
from amp_launcher.loop.divergence import Diverged
from amp_launcher.loop.run import Run
from amp_launcher.run_folder import Superseded
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import PlacementError, SettingsErrorOfAll, rank_and_size, speak

FrameworksRun = TypeVar("FrameworksRun", bound=Run)


def start(kind: type[FrameworksRun], recipe: str, train: Callable[[FrameworksRun], None]) -> NoReturn:
    """Run a recipe's `train` with the command line's arguments, and exit. `kind` is the framework's `Run`.

    The process ends by `leave.finish`, unless what it waits for, or records, needs the interpreter's finalization.
    """
    code, chosen = _run(kind, recipe, train, sys.argv[1:])
    if _is_finalized(chosen, kind.framework):
        sys.exit(code)
    leave.finish(code)


def _is_finalized(chosen: Arguments | None, framework: str) -> bool:
    if "TF_CONFIG" in os.environ:
        return True  # TensorFlow's workers wait for each other there; without, one misses what an ended one sent
    if framework == "torch" and "RANK" in os.environ:
        return False  # for Gloo's threads; a profiler's range was closed before
    # NVIDIA's profilers write what they recorded at the process's exit.
    return chosen is not None and chosen.settings.profile.tool not in ("none", "framework")


def main(kind: type[FrameworksRun], recipe: str, train: Callable[[FrameworksRun], None], words: Sequence[str]) -> int:
    """Run a recipe's `train` with these arguments, and return the exit code.

    0 done; 1 failed, also for a failed proof or training that diverged; 2 wrong settings; 85 stopped on request with
    the state saved.
    """
    return _run(kind, recipe, train, words)[0]


def _run(
    kind: type[FrameworksRun], recipe: str, train: Callable[[FrameworksRun], None], words: Sequence[str]
) -> tuple[int, Arguments | None]:
    """The exit code, and the arguments if they could be read."""
    began = time.monotonic()
    if "--help" in words or "-h" in words:
        print(arguments.help_text(recipe, f"amp_launcher.recipes.{recipe}.train_{kind.framework}"))
        return DONE, None
    chosen: Arguments | None = None
    run: Run | None = None
    try:
        chosen = arguments.parse(words, recipe, kind.framework)
        run = kind.join(chosen, began)
        train(cast("FrameworksRun", run))
    except (Exception, KeyboardInterrupt) as error:
        return _fail(error, recipe, kind.framework, run, chosen), chosen
    run.world.leave()
    return run.exit_code, chosen


def _fail(error: BaseException, recipe: str, framework: str, run: Run | None, chosen: Arguments | None) -> int:
    """Report the error and leave it in the result, if training had begun; returns the exit code."""
    message, reason = f"{recipe}: {error}", str(error)
    rank = rank_and_size(framework)[0]
    first = rank == 0
    match error:
        case SettingsError():
            speak(message, first or not isinstance(error, SettingsErrorOfAll))
            if run is None or not run.training:
                return REFUSED
            run.leave_first_failure(reason)  # a file turned out to be broken in the middle
            return FAILED
        case PlacementError():
            if chosen and (first or not error.of_all):
                run_folder.first_failure(chosen.run, rank, reason.partition("\n")[0])
            speak(message, first or not error.of_all)
            return FAILED
        case Superseded():
            print(message, file=sys.stderr)
            return FAILED
        case Diverged():
            speak(message, first)  # every rank has the same rows
        case KeyboardInterrupt():
            reason = "interrupted from the keyboard"
        case _:
            traceback.print_exception(error)
            if run is not None:
                run.leave_first_failure(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))
            return FAILED
    if run is not None:
        run.leave_failure(reason)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
