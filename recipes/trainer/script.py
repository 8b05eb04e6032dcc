"""The wrapper around a user's own script in any framework: runs the file and observes it.

python -m recipes.torch_.script amp=o1 script=train.py workdir=. -- --lr 0.1 data/
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes import arguments, script_source, settings
from recipes.arguments import Arguments
from recipes.run_folder import Superseded
from recipes.trainer import result_fields
from recipes.trainer.run import FAILED, REFUSED
from recipes.trainer.script_attempt import ScriptAttempt
from recipes.trainer.script_execution import import_from_snapshot
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
    try:
        started = parse(words, framework)
        wrapper = wrap(started)
    except SettingsError as error:
        print(f"script: {error}", file=sys.stderr)
        return REFUSED
    except PlacementError as error:
        speak(f"script: {error}", rank == 0 or not error.of_all)
        return FAILED
    if rank == 0:
        for line in result_fields.mode_lines(started.chosen.settings, wrapper.mode):
            print(line, flush=True)
    import_from_snapshot(started.file, started.chosen.plan)
    try:
        return ScriptAttempt(started, wrapper, began).run()
    except Superseded as error:
        print(f"script: {error}", file=sys.stderr)
        return FAILED


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
