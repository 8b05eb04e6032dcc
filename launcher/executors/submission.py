"""Submission of plans on this machine: checked, prepared as run folders, started. Refused plans leave nothing."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.executors import dependency, execute, interrupts
from launcher.executors.local import start as local_start
from launcher.plan.model import Plan
from launcher.probe.facts import Facts
from launcher.runs import run_ids, store
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
    calls: Sequence[bytes] = (),
) -> list[Path]:
    """Submit one run, or the cells of a sweep, and return their folders. `code` is the files of snapshots, by digest;
    others have to be there. `calls` is for each plan the pickle that its folder gets, where they run functions.

    Raises `LauncherError` if the queue refuses; then the folders of refused runs are gone.
    """
    check(plans)
    came_from = execute.provenance(plans[0], facts.code if facts else None)
    interrupts.check()
    if len(plans) > 1:
        sweep = run_ids.new_id(time.time())
        plans = [plan.bind(run_ids.cell_id(sweep, index, len(plans))) for index, plan in enumerate(plans)]
    furnish = [functools.partial(_lay_call, call) for call in calls]
    most = facts.slurm.max_array_size if facts and facts.slurm else None
    return lay_and_start(plans, came_from, code=code, furnish=furnish, start=start, max_array_size=most)


def lay_and_start(
    plans: Sequence[Plan],
    came_from: Mapping[str, Any],
    *,
    cells: Sequence[str] = (),
    code: Mapping[str, Mapping[str, Path]] | None = None,
    passed: Mapping[str, str] | None = None,
    furnish: Sequence[Callable[[Path], None]] = (),
    start: Start = start,
    max_array_size: int | None = None,
) -> list[Path]:
    """Make the folders of runs, with the record of their sweep, and start them; see `execute.prepare`. `cells` is all
    runs of the sweep, where some were started before; `furnish` is for each plan what puts files into its folder.

    Raises `LauncherError`, and then the folders of those that were not accepted are gone.
    """
    folders: list[Path] = []
    sweep = run_ids.sweep_of(plans[0].run_id)
    try:
        for plan, put in itertools.zip_longest(plans, furnish):
            folders.append(execute.prepare(plan, (code or {}).get(plan.code), came_from, passed, put))
        if sweep:
            names = cells or [folder.name for folder in folders]
            store.write_sweep(folders[0].parent, sweep, names, {"command": list(plans[0].command)})
    except BaseException:
        for folder in folders:
            execute.discard(folder)
        raise
    bound = [plan.bind(folder.name) for plan, folder in zip(plans, folders, strict=True)]
    try:
        start(folders, bound, max_array_size)
    except BaseException as error:  # an interrupt too
        _discard_refused(folders, sweep, all_of_them=isinstance(error, local_start.Refused))
        raise
    return folders


def _discard_refused(folders: Sequence[Path], sweep: str | None, *, all_of_them: bool) -> None:
    """Delete the folders of runs that were not accepted, and name those that were."""
    for folder in folders:
        if all_of_them or not _accepted(folder):
            execute.discard(folder)
    if sweep and not any(folder.exists() for folder in folders):
        store.forget_sweep(folders[0].parent, sweep)
    for name in (folder.name for folder in folders if folder.exists()):
        print(f"{name} was handed over all the same; `ls {name}` says how it stands", file=sys.stderr)


def _lay_call(call: bytes, folder: Path) -> None:
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
