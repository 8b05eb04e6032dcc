"""A trainer's start and end, for every framework."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from recipes import arguments
from recipes.divergence import Diverged
from recipes.run_folder import Superseded
from recipes.trainer.run import DONE, FAILED, INTERRUPTED, REFUSED, Run
from recipes.trainer.world import PlacementError, SettingsErrorOfAll, rank_and_size, speak
from recipes.typed import SettingsError

FrameworksRun = TypeVar("FrameworksRun", bound=Run)

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def start(kind: type[FrameworksRun], recipe: str, train: Callable[[FrameworksRun], None]) -> NoReturn:
    """Run a recipe's `train` with the command line's arguments, and exit. `kind` is the framework's `Run`.

    The process ends without the interpreter's finalization, which takes a second with a framework loaded, and which
    Gloo's threads may abort: they may still hold Python objects. Threads that are no daemons are waited for, and
    open files are flushed, as finalization does.
    """
    words = sys.argv[1:]
    code = main(kind, recipe, train, words)
    if _is_finalized(recipe, kind.framework, words):
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush_files()
    os._exit(code)


def _is_finalized(recipe: str, framework: str, words: Sequence[str]) -> bool:
    if "TF_CONFIG" in os.environ:
        return True  # TensorFlow's workers wait for each other there; without, one misses what an ended one sent
    if framework == "torch" and "RANK" in os.environ:
        return False  # for Gloo's threads; a profiler's range was closed before
    try:
        tool = arguments.parse(words, recipe, framework).settings.profile.tool
    except SettingsError:
        return False  # nothing ran
    return tool not in ("none", "framework")  # NVIDIA's profilers write what they recorded at the process's exit


def _flush_files() -> None:
    """Flush every open file, the standard streams too. Their types are asked, since an object may pretend a class."""
    files = [value for value in gc.get_objects() if issubclass(type(value), _BUFFERED)]
    for file in sorted(files, key=lambda file: not isinstance(file, io.TextIOBase)):  # text is above a buffer
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            file.flush()


def main(kind: type[FrameworksRun], recipe: str, train: Callable[[FrameworksRun], None], words: Sequence[str]) -> int:
    """Run a recipe's `train` with these arguments, and return the exit code.

    0 done; 1 failed, also for a failed proof or training that diverged; 2 wrong settings; 85 stopped on request with
    the state saved.
    """
    began = time.monotonic()
    if "--help" in words or "-h" in words:
        print(arguments.help_text(recipe, f"recipes.{kind.framework}_.{recipe}"))
        return DONE
    run: FrameworksRun | None = None
    first = rank_and_size(kind.framework)[0] == 0
    try:
        run = kind.join(arguments.parse(words, recipe, kind.framework), began)
        train(run)
    except SettingsError as error:
        speak(f"{recipe}: {error}", first or not isinstance(error, SettingsErrorOfAll))
        if run is None or not run.training:
            return REFUSED
        run.leave_failure(str(error))  # a file that turned out to be broken in the middle
        return FAILED
    except PlacementError as error:
        speak(f"{recipe}: {error}", first or not error.of_all)
        return FAILED
    except Superseded as error:
        print(f"{recipe}: {error}", file=sys.stderr)
        return FAILED
    except Diverged as error:
        speak(f"{recipe}: {error}", first)  # every rank has the same rows
        _leave_failure(run, str(error))
        return FAILED
    except KeyboardInterrupt:
        _leave_failure(run, "interrupted from the keyboard")
        return INTERRUPTED
    except Exception as error:
        traceback.print_exc()
        if run is not None:
            run.leave_first_failure(f"{type(error).__name__}: {error}", traceback.format_exc())
        return FAILED
    run.world.leave()
    return run.exit_code


def _leave_failure(run: Run | None, reason: str) -> None:
    if run is not None:
        run.leave_failure(reason)
