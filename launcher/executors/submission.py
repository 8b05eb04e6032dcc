"""Submission of plans, for submitit executors and hosts that are sent some: checked, prepared as run folders, started.
Refused plans leave nothing."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from launcher import waiting
from launcher.code.snapshot import Code
from launcher.errors import UsageError
from launcher.executors import dependency, execute, interrupts, stopping
from launcher.executors.local import start as local_start
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.runs import address, run_files, run_ids, store
from launcher.runs.schema import Submission


class Source(NamedTuple):
    """What the submission of a plan takes from this machine in addition to the plan."""

    plan: Plan
    secrets: Mapping[str, str | None]
    """The files that hold them, None for a variable of this shell."""
    code: Code


def submit_to_cluster(
    plans: Sequence[Plan], sources: Sequence[Source | None], populate: Sequence[Callable[[Path], None]] = ()
) -> list[Path]:
    """Submit new plans here or to their host, as one sweep where there are several; `populate` is for each plan what
    puts files into its folder. Returns their folders here. Raises `LauncherError`."""
    addresses = [address.of(SimpleNamespace(**plan.cluster)) for plan in plans]
    for name, values in (
        ("run_root", [plan.run_root for plan in plans]),
        ("after", [plan.after for plan in plans if plan.job is None]),
        ("where the cluster is", addresses),
    ):
        if any(value != values[0] for value in values):
            raise UsageError(f"the plans of a batch differ in {name}; submit those of each in a batch of its own")
    known = [source for source in sources if source is not None]
    came_from = execute.provenance(plans[0], known[0].code if known else None)
    snapshots = {source.plan.code: source.code for source in known}
    code = {digest: snapshot.paths for digest, snapshot in snapshots.items()}
    if addresses[0] is None:
        return submit(plans, came_from, code=code, populate=populate)
    from launcher.executors.ssh import submit_client

    secrets = [source.secrets if source is not None else {} for source in sources]
    return submit_client.submit(plans, came_from, code, addresses[0], secrets)


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


def check_plans(plans: Sequence[Plan]) -> None:
    """Check what the plans come after, and let the scheduler check them without submitting them. Raises
    `LauncherError`."""
    dependency.check_after(plans)
    if plans[0].queue == "slurm":
        from launcher.executors.slurm.submit import test_only

        test_only(plans)


def submit(
    plans: Sequence[Plan],
    came_from: Mapping[str, Any],
    *,
    code: Mapping[str, Mapping[str, Path]] | None = None,
    passed: Mapping[str, str] | None = None,
    populate: Sequence[Callable[[Path], None]] = (),
) -> list[Path]:
    """Submit one run, or the cells of a sweep, and return their folders. `code` is the files of snapshots by digest,
    `populate` has one for each plan; the rest is as in `execute.prepare`. Raises `LauncherError`, and then the folders
    of those that were not accepted are gone."""
    check_plans(plans)
    interrupts.raise_noted()
    if len(plans) > 1 and plans[0].run_id == PLACEHOLDER:
        sweep = run_ids.new_id(time.time())
        plans = [plan.bind(run_ids.cell_id(sweep, index, len(plans))) for index, plan in enumerate(plans)]
    folders: list[Path] = []
    try:
        with waiting.counted(list(itertools.zip_longest(plans, populate)), "writing run folders: {} of {}") as pairs:
            for plan, put in pairs:
                folders.append(execute.prepare(plan, (code or {}).get(plan.code), came_from, passed, put))
        start(folders, [plan.bind(folder.name) for plan, folder in zip(plans, folders, strict=True)])
    except BaseException as error:  # an interrupt too
        # Of a chain a part is of no use: what was accepted already is ended, and goes.
        ended = plans[0].job is not None and not stopping.kill_all(filter(_is_accepted, folders))
        _discard(folders, keep_accepted=not ended and not isinstance(error, local_start.StartRefused))
        raise
    return folders


def _discard(folders: Sequence[Path], *, keep_accepted: bool) -> None:
    kept = [folder for folder in folders if keep_accepted and _is_accepted(folder)]
    for folder in folders:
        if folder not in kept:
            execute.discard(folder)
    for folder in kept:
        print(f"{folder.name} was handed over all the same; `ls {folder.name}` says how it stands", file=sys.stderr)


def _is_accepted(folder: Path) -> bool:
    submission = store.read(Submission, folder / "submission.json")
    return submission.queue is not None and not run_files.is_refused(submission)
