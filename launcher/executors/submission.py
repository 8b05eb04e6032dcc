"""Submission of plans on this machine: checked, prepared as run folders, started. Refused plans leave nothing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.executors import dependency, execute, interrupts
from launcher.executors.local import start as local_start
from launcher.plan.model import Plan
from launcher.probe.facts import Facts
from launcher.runs import store
from launcher.runs.schema import Submission
from recipes import function

Start = Callable[[Sequence[Path], Sequence[Plan], int | None], None]
"""Starts prepared run folders, whose plans these are; the last is the cluster's MaxArraySize, if known."""


def start(folders: Sequence[Path], plans: Sequence[Plan], max_array_size: int | None = None) -> None:
    """Start prepared run folders of this machine."""
    if plans[0].queue == "slurm":
        from launcher.executors.slurm import submit

        submit.start(folders, plans, max_array_size)
    else:
        local_start.start_here(folders)


def submit(
    plans: Sequence[Plan],
    facts: Facts | None,
    code: Mapping[str, Mapping[str, Path]],
    start: Start = start,
    calls: Sequence[bytes | None] = (),
) -> list[Path]:
    """Submit one run, or the cells of a sweep, and return their folders. `code` is the files of snapshots, by digest;
    others have to be there. `calls` is for each plan the pickle that its folder gets, where it runs a function.

    Raises `LauncherError` if the queue refuses; then the folders of refused runs are gone.
    """
    check(plans)
    came_from = execute.provenance(plans[0], facts.code if facts else None)
    interrupts.check()
    sweep: str | None = None
    furnish = [functools.partial(_lay_call, call) for call in calls or [None] * len(plans)]
    if len(plans) == 1:
        folders = [execute.prepare(plans[0], code.get(plans[0].code), came_from, furnish=furnish[0])]
    else:
        sweep, folders = execute.sweep(plans, code, came_from, furnish)
    bound = [plan.bind(folder.name) for plan, folder in zip(plans, folders, strict=True)]
    start_or_discard(folders, bound, sweep, facts.slurm.max_array_size if facts and facts.slurm else None, start)
    return folders


def start_or_discard(
    folders: Sequence[Path], bound: Sequence[Plan], sweep: str | None, max_array_size: int | None, start: Start = start
) -> None:
    """Start prepared run folders. If that fails, those that were not accepted are deleted."""
    try:
        start(folders, bound, max_array_size)
    except BaseException as error:  # an interrupt too
        for folder in folders:
            if isinstance(error, local_start.Refused) or not _accepted(folder):
                execute.discard(folder)
        if sweep and not any(folder.exists() for folder in folders):
            store.forget_sweep(folders[0].parent, sweep)
        for folder in folders:
            if folder.exists():
                print(
                    f"{folder.name} was handed over all the same; `ls {folder.name}` says how it stands",
                    file=sys.stderr,
                )
        raise


def _lay_call(call: bytes | None, folder: Path) -> None:
    if call is not None:
        function.write_own(str(folder / function.CALL), call)


def check(plans: Sequence[Plan]) -> None:
    """Let the scheduler check the plans without submitting them. Raises `LauncherError`."""
    if plans[0].queue == "slurm":
        from launcher.executors.slurm.submit import test_only

        test_only(plans)
    elif plans[0].after:
        dependency.check(plans[0].after)


def _accepted(folder: Path) -> bool:
    submission = store.read(Submission, folder / "submission.json")
    return submission.queue is not None and not (
        submission.answer and Path(submission.answer).with_suffix(".failed").exists()
    )
