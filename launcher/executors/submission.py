"""Submission of plans on this machine: checked, prepared as run folders, started. Refused plans leave nothing."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.executors import dependency, execute, interrupts, stopping
from launcher.executors.local import start as local_start
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.runs import run_ids, store
from launcher.runs.schema import Submission


def start(folders: Sequence[Path], plans: Sequence[Plan]) -> None:
    """Start prepared run folders of this machine; the jobs of a chain one by one, each after those that it needs."""
    if plans[0].job is not None and len(plans) > 1:
        for folder, plan in zip(folders, plans, strict=True):
            start([folder], [plan])
    elif plans[0].queue == "slurm":
        from launcher.executors.slurm import submit

        submit.start(folders, plans)
    else:
        local_start.start_here(folders, plans)


def check(plans: Sequence[Plan]) -> None:
    """Check what the plans come after, and let the scheduler check them without submitting them. Raises
    `LauncherError`."""
    dependency.check(plans)
    if plans[0].queue == "slurm":
        from launcher.executors.slurm.submit import test_only

        test_only(plans)


def submit(
    plans: Sequence[Plan],
    came_from: Mapping[str, Any],
    *,
    cells: Sequence[str] = (),
    code: Mapping[str, Mapping[str, Path]] | None = None,
    passed: Mapping[str, str] | None = None,
    populate: Sequence[Callable[[Path], None]] = (),
) -> list[Path]:
    """Submit one run, or the cells of a sweep, and return their folders; see `execute.prepare`.

    `code` is the files of snapshots, by digest; others have to be there. `cells` is all runs of the sweep, where some
    were started before; `populate` is for each plan what puts files into its folder. Raises `LauncherError`, and then
    the folders of those that were not accepted are gone.
    """
    check(plans)
    interrupts.check()
    if len(plans) > 1 and plans[0].run_id == PLACEHOLDER:
        sweep = run_ids.new_id(time.time())
        plans = [plan.bind(run_ids.cell_id(sweep, index, len(plans))) for index, plan in enumerate(plans)]
    folders: list[Path] = []
    try:
        for plan, put in itertools.zip_longest(plans, populate):
            folders.append(execute.prepare(plan, (code or {}).get(plan.code), came_from, passed, put))
        if named := run_ids.sweep_of(folders[0].name):
            names = cells or [folder.name for folder in folders]
            store.write_sweep(folders[0].parent, named, names, {"command": list(plans[0].command)})
        start(folders, [plan.bind(folder.name) for plan, folder in zip(plans, folders, strict=True)])
    except BaseException as error:  # an interrupt too
        # Of a chain a part is of no use: what was accepted already is ended, and goes.
        ended = plans[0].job is not None and not stopping.kill_all(filter(_is_accepted, folders))
        alone = set(cells) <= {plan.run_id for plan in plans}  # else an earlier try started cells of this sweep
        _discard(
            folders, keep_accepted=not ended and not isinstance(error, local_start.StartRefused), forget_sweep=alone
        )
        raise
    return folders


def _discard(folders: Sequence[Path], *, keep_accepted: bool, forget_sweep: bool) -> None:
    """Delete the folders of runs that were not accepted, and name those that were. With none accepted, the record of
    their sweep goes if `forget_sweep` is true."""
    kept = [folder for folder in folders if keep_accepted and _is_accepted(folder)]
    for folder in folders:
        if folder not in kept:
            execute.discard(folder)
    if forget_sweep and folders and not kept and (sweep := run_ids.sweep_of(folders[0].name)):
        store.forget_sweep(folders[0].parent, sweep)
    for folder in kept:
        print(f"{folder.name} was handed over all the same; `ls {folder.name}` says how it stands", file=sys.stderr)


def _is_accepted(folder: Path) -> bool:
    submission = store.read(Submission, folder / "submission.json")
    return submission.queue is not None and not (
        submission.answer and Path(submission.answer).with_suffix(".failed").exists()
    )
