"""A trainer's start and end, for every framework."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

from recipes import arguments
from recipes.arguments import Arguments
from recipes.divergence import Diverged
from recipes.run_folder import Superseded
from recipes.trainer.run import DONE, FAILED, INTERRUPTED, REFUSED, Run
from recipes.trainer.world import PlacementError, SettingsErrorOfAll, rank_and_size, speak
from recipes.typed import SettingsError


def main(
    recipe: str,
    framework: str,
    module: str,
    words: Sequence[str],
    make_run: Callable[[Arguments], Run],
    train: Callable[[Run], None],
    leave: Callable[[Run], None],
) -> int:
    """Run a recipe for the words of its command line; returns the process's exit code.

    `make_run` meets the other ranks, `leave` parts from them. 0 done; 1 failed, also where the proof did or training
    diverged; 2 the settings are wrong; 85 stopped on request with the state saved.
    """
    if "--help" in words or "-h" in words:
        print(arguments.help_text(recipe, module))
        return DONE
    run: Run | None = None
    first = rank_and_size(framework)[0] == 0
    try:
        run = make_run(arguments.parse(words, recipe, framework))
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
    leave(run)
    return run.exit_code


def _leave_failure(run: Run | None, reason: str) -> None:
    if run is not None:
        run.leave_failure(reason)
