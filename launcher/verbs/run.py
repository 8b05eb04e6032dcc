"""`run`: check everything, then start it; stay with it where it runs here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from launcher import execute, request
from launcher.plan import Plan, resolve
from launcher.probe import code_files, probe


def main(arguments: Sequence[str]) -> int:
    words = request.take_apart(arguments)
    if words.help:
        from launcher.help import keys

        print(keys(words.config_dirs), end="")
        return 0
    asked = request.compose(words)
    if words.cfg:
        request.print_configuration(asked)
        return 0
    specs = request.understand(asked)
    facts = probe(specs)
    plans = [resolve(spec, facts) for spec in specs]
    for line in dict.fromkeys(line for plan in plans for line in plan.advice):
        print(f"note: {line}", file=sys.stderr)
    launch = specs[0].launch
    folders = _submit(plans)
    return stay(folders) if not launch.detach else leave(folders)


def _submit(plans: Sequence[Plan]) -> list[Path]:
    """Prepare every run folder, then start them: one run, or the cells of a sweep in turn."""
    code = code_files()
    if len(plans) == 1:
        folders = [execute.prepare(plans[0], code)]
    else:
        _, folders = execute.sweep(plans, code, plans[0].command)
    from launcher.executors import DirectExecutor

    DirectExecutor().start(folders)
    return folders


def leave(folders: Sequence[Path]) -> int:
    """Name the runs and return, leaving them to themselves."""
    for folder in folders:
        print(folder.name)
    what = folders[0].name if len(folders) == 1 else folders[0].name.rpartition("-")[0]
    print(f"started in the background; follow with: python -m launcher watch {what}", file=sys.stderr)
    return 0


def stay(folders: Sequence[Path]) -> int:
    """Watch to the end. Ctrl-C asks the runs to save and stop; a second one kills them."""
    from launcher import stopping
    from launcher.watch import watch

    interrupted = False

    def on_interrupt(times: int) -> None:
        nonlocal interrupted
        interrupted = True
        for folder in folders:
            if times == 1:
                stopping.request_stop(folder)
            else:
                stopping.kill(folder)

    states = watch(folders, on_interrupt=on_interrupt)
    if interrupted:
        return 130
    return 0 if all(state.name == "done" for state in states.values()) else 1
