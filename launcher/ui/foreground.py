"""Submission from a terminal: prints the names of the runs, then follows them to their end or returns."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.called import as_started
from launcher.config.schema import Launch, LocalCluster
from launcher.config.spec import JobSpec
from launcher.executors import interrupts
from launcher.plan.model import Plan
from launcher.plan.plan_summary import resources
from launcher.probe.facts import Facts
from launcher.runs import run_ids, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State

LastWords = Callable[[dict[Path, State], int], list[str]]
"""The lines about runs that have ended, for a terminal of so many columns."""


def submit_and_follow(plans: Sequence[Plan], facts: Facts, specs: Sequence[JobSpec], last_words: LastWords) -> int:
    """Submit plans, then follow the runs or print their names. Ctrl-C is handled once their names are shown, or nothing
    is left of them. Sending them to another host can take long, and is interrupted at once."""
    with interrupts.held():
        try:
            folders = _submit(plans, facts, specs)
        except interrupts.HandedOver as interrupted:
            leave(interrupted.folders)
            what = _run_or_sweep(interrupted.folders)
            print(f"{what} may have been started or not; `ls {what}` says so, `cancel {what}` ends it", file=sys.stderr)
            return 130
        if stays(specs[0].launch):
            return stay(folders, last_words)
        code = leave(folders)
        if interrupts.noted():
            print(f"submitted before the interrupt; `cancel {_run_or_sweep(folders)}` ends it", file=sys.stderr)
            return 130
        return code


def _submit(plans: Sequence[Plan], facts: Facts, specs: Sequence[JobSpec]) -> list[Path]:
    """Submit plans to their cluster, and print what they ask for. Returns their folders here."""
    from launcher.executors.base import submit

    folders = submit(plans, specs, facts)
    for text in dict.fromkeys(resources(plan) for plan in plans):
        if text:
            scope = ", for each run" if len(plans) > 1 else ""
            print(f"submitted to {plans[0].cluster['kind']}{scope}: {text}", file=sys.stderr)
    return folders


def stays(launch: Launch) -> bool:
    """Whether the command waits for the end: a local run's unless detach=true, another's only with wait=true."""
    return not launch.detach if isinstance(launch.cluster, LocalCluster) else launch.wait


def leave(folders: Sequence[Path]) -> int:
    """Print the names of the runs and return."""
    for folder in folders:
        print(folder.name)
    print(as_started(f"follow with: python -m launcher watch {_run_or_sweep(folders)}"), file=sys.stderr)
    return 0


def _run_or_sweep(folders: Sequence[Path]) -> str:
    """The name of the run, or of the sweep that several are of."""
    sweep = run_ids.sweep_of(folders[0].name) if len(folders) > 1 else None
    return sweep or folders[0].name


def stay(folders: Sequence[Path], last_words: LastWords) -> int:
    """Watch to the end. Ctrl-C asks the runs to save and stop; a second one kills them."""
    from launcher.executors import notices, stopping
    from launcher.ui.live import watch

    interrupted = False

    def on_interrupt(times: int) -> None:
        nonlocal interrupted
        interrupted = True
        if times > 1:
            stopping.kill_all(folders)
            return
        for folder in folders:
            if stopping.stop_of(folder).possible:
                stopping.request_stop(folder)

    # The output of several runs, or of the blocks of a comparison, would be mixed up.
    output = len(folders) == 1 and _is_single_script(folders[0])
    if output:
        last_words = _after_output
    with notices.told(folders):
        states = watch(folders, last_words, on_interrupt=on_interrupt, output=output)
    if interrupted:
        return 130
    return 0 if all(state.name == "done" for state in states.values()) else 1


def _after_output(states: Mapping[Path, State], width: int) -> list[str]:
    from launcher.ui import ended_runs

    ((folder, state),) = states.items()
    return ended_runs.of_run(folder, state, time.time(), width, printed=True)


def _is_single_script(folder: Path) -> bool:
    plan = store.read(PlanRecord, folder / "plan.json", ("script", "arms"))
    return plan.script is not None and not plan.arms
