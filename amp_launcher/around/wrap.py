"""The wrapper around a user's own script in any framework: runs the file and observes it.

python -m amp_launcher.torch.script amp=o1 script=train.py workdir=. -- --lr 0.1 data/
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_launcher import arguments, records, settings
from amp_launcher.arguments import Arguments
from amp_launcher.around import plain_start, script_source
from amp_launcher.around.overlay import LastResort, Overlay
from amp_launcher.around.script_attempt import ScriptAttempt
from amp_launcher.around.wrapper import Started, Wrapper
from amp_launcher.leave import FAILED, REFUSED
from amp_launcher.loop import result_fields
from amp_launcher.run_folder import Superseded
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import PlacementError, rank_and_size, speak


def main(framework: str, words: Sequence[str], wrap: Callable[[Started], Wrapper]) -> int:
    """Run a script for these words; returns the process's exit code.

    It is the script's own, but 1 if the script succeeded and its proof failed, and 2 if it was not started.
    """
    if "--help" in _ours(words) or "-h" in _ours(words):
        print(arguments.help_text("script", f"amp_launcher.{framework}.script"))
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
    if rank == 0 and started.chosen.settings.amp.claims:
        for line in result_fields.mode_lines(started.chosen.settings, wrapper.mode):
            print(line, flush=True)
    _start_plainly(started)
    try:
        return ScriptAttempt(started, wrapper, began).run()
    except Superseded as error:
        print(f"script: {error}", file=sys.stderr)
        return FAILED


def _start_plainly(started: Started) -> None:
    """Give the script the variables and the search path of plain Python, and its project the snapshot's code."""
    planned = started.chosen.plan.get("script") or {}
    # There is no snapshot of a file in an image, nor of one that defines a function.
    is_kept = planned and not planned["in_image"] and planned["file"] != records.FUNCTION
    kept = str(started.file.parents[len(Path(planned["file"]).parts) - 2]) if is_kept else ""  # of script/tools/x.py
    plain_start.restore(str(Path(__file__).parents[2]) if planned else "", started.workdir)
    if kept:
        root = started.root or kept
        sys.path[:] = [_in_snapshot(entry, planned.get("root"), root) for entry in sys.path]
        Overlay(root, kept).install()
        sys.meta_path.append(LastResort(root, kept))


def _in_snapshot(entry: str, checkout: str | None, root: str) -> str:
    """An entry of `sys.path`, which may point into a checkout that isn't here, as an editable install's."""
    is_in = checkout and f"{entry}/".startswith(f"{checkout}/")
    return f"{root}{entry[len(checkout or '') :]}" if is_in else entry


def parse(words: Sequence[str], framework: str) -> Started:
    """The words of the wrapper's command line. Raises `SettingsError`."""
    ours = _ours(words)
    own = {key: text for key, _, text in (word.partition("=") for word in ours) if key in ("script", "workdir")}
    rest = [word for word in ours if word.partition("=")[0] not in ("script", "workdir")]
    chosen = arguments.parse(rest, "script", framework, alone=not own and "--" not in words)
    settings.check_settings(chosen.settings)
    passed: Sequence[str] = words[len(ours) + 1 :]
    inputs: Mapping[str, str] = {}
    if planned := chosen.plan.get("script"):
        own = {"script": planned["file"], "workdir": planned["workdir"] or _own_folder(chosen)}
        passed, inputs = [*planned["arguments"], *_resuming(chosen.plan)], planned.get("inputs", {})
    if not own.get("script"):
        raise SettingsError("script=FILE is missing (command line)")
    file = Path(own["script"]).absolute()
    workdir = Path(own.get("workdir") or ".").absolute()
    # Where the checkout is, the script has its own name; another machine has the snapshot alone.
    root = planned.get("root", "") if planned and os.path.isdir(planned.get("root") or "") else ""
    here = workdir == Path.cwd() and not planned
    named = planned["named"] if planned and root else own["script"] if here else str(file)
    of_function = planned["named"] if planned and planned["file"] == records.FUNCTION else ""
    try:
        source = script_source.read(Path(of_function or file).read_bytes())
    except OSError as error:
        if not of_function:  # a function's may not be here
            raise SettingsError(f"script={file}: {error.strerror}") from None
        source = script_source.Source()
    return Started(
        chosen=chosen,
        file=file,
        named=named,
        root=root,
        workdir=workdir,
        inputs=inputs,
        arguments=tuple(passed),
        source=source,
    )


def _own_folder(chosen: Arguments) -> str:
    """The folder of the run's own in which its script starts: one for all attempts, so that a later attempt finds the
    files of an earlier one; in a comparison one for each attempt, since each block starts afresh."""
    block = f"/{os.environ['LAUNCHER_ATTEMPT']}" if chosen.plan.get("arm") else ""
    below = chosen.plan["script"].get("below")
    return f"{chosen.run}/work{block}{f'/{below}' if below else ''}"


def _resuming(plan: Mapping[str, Any]) -> Sequence[str]:
    """Arguments added from the second attempt on; none in a comparison, where each block starts afresh."""
    again = int(os.environ.get("LAUNCHER_ATTEMPT") or 1) > 1 and not plan.get("arm")
    return plan["script"].get("resume_arguments", ()) if again else ()


def _ours(words: Sequence[str]) -> list[str]:
    return list(words[: words.index("--")] if "--" in words else words)
