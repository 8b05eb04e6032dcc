"""`resume`: continue a run in its own folder, from its newest checkpoint, with the code that it began with."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.commands.arguments import boolean, one_of, runs_and_keys
from launcher.compare.last_words import last_words
from launcher.errors import UsageError
from launcher.executors import backends, follower
from launcher.executors.plan_changes import RESUME_ARGUMENTS
from launcher.executors.resume import resume_here
from launcher.runs import run_roots, store
from launcher.runs.schema import PlanRecord
from launcher.runs.selection import Selection
from launcher.ui.foreground import leave, stay

HELP = """\
Continue a run that stopped, failed, was cancelled or was lost, from its newest checkpoint, in the same folder.

usage: python -m launcher resume RUN|SWEEP [failed] [key=value ...] [run_root=PATH]

It runs the code that the run began with, whatever was edited since. Keys that leave the model alone may change:
epochs, steps, checkpoint.every, checkpoint.keep, require_proof, and the cluster's own (cluster.time=...). A recipe
in torch continues with another number of ranks, nodes=N under Slurm, gpus=N of those that it could choose from, and
with parallel=ddp or fsdp.
epochs=20 continues a run that was done; so does script.resume_arguments=[...] a script, which gets these further
arguments. A search continues where it stopped, and search.trials=80 asks for more trials.
detach=true returns at once. Secrets that a run kept for itself, as over SSH, ended with it: say secrets.NAME=FILE, or
secrets.NAME for its value in this shell, again.
A script on this machine inherits this shell's variables. Where they differ from those that it began with they are
named, and env=here continues with them.
"""


def main(arguments: Sequence[str]) -> int:
    if "--" in arguments:
        raise UsageError(
            f"resume takes nothing after --; say {RESUME_ARGUMENTS}=[...] for further arguments of a script"
        )
    names, assignments, secrets = runs_and_keys("resume", arguments, "what may change is said as key=value")
    root = assignments.pop("run_root", None)
    detach = boolean("detach", assignments.pop("detach", "false"))
    here = assignments.pop("env", None)
    if here not in (None, "here"):
        raise UsageError(f"env={here}: say env=here, for the variables of this shell (command line)")
    wait = boolean("wait", assignments.pop("wait", "false"))
    if not names:
        raise UsageError("resume takes one run or sweep: python -m launcher resume RUN [key=value ...]")
    failed = len(names) > 1 and names[-1] == "failed"
    selected = one_of("resume", names[:-1] if failed else names, run_roots.named(root))
    if selected.sweep and (store.search_folder(selected.runs[0].root, selected.sweep) / store.SEARCH).exists():
        from launcher.search import command

        if failed:
            raise UsageError(f"{selected.sweep} is a search, which asks for new trials: resume {selected.sweep}")
        return command.go_on(selected.runs[0].root, selected.sweep, {**assignments, **dict.fromkeys(secrets, "")})
    if failed:
        selected = _failed(selected)
    if any(run_roots.is_remote(run.root) for run in selected.runs):
        from launcher.ssh import actions

        if here:
            raise UsageError(
                "env=here is for scripts on this machine: others inherit nothing of a shell (command line)"
            )
        folders, stays = actions.resume(selected, assignments, secrets), wait
    else:
        is_sweep = selected.sweep is not None
        folders, queue = resume_here(selected.runs, assignments, secrets, is_sweep=is_sweep, from_here=bool(here))
        stays = wait or (queue == "direct" and not detach)
    follower.start(folders, store.read(PlanRecord, folders[0] / "plan.json", ("tracker",)).tracker)
    print(f"resuming {', '.join(folder.name for folder in folders)}", file=sys.stderr)
    return stay(folders, last_words) if stays else leave(folders)


def _failed(selected: Selection) -> Selection:
    """Those runs that failed or were lost, and in a chain what never started for that. Raises `UsageError` where there
    are none."""
    seen = backends.states_of(selected.runs, fresh=True)
    failed = {row.run.id: row.run for row in seen if row.state.name in ("failed", "lost")}
    if not failed:
        raise UsageError(f"no run of {selected.sweep or selected.runs[0].id} has failed")
    for row in seen:  # each job of a chain stands behind those that it needs
        plan = store.read(PlanRecord, f"{row.run.path}/plan.json", ("job", "after"), own_in=row.run.root)
        needs = {item.rpartition(":")[2] for item in (plan.after or "").split(",")} if plan.job else set()
        if row.state.name == "cancelled" and needs & failed.keys():
            failed[row.run.id] = row.run
    return selected._replace(runs=tuple(row.run for row in seen if row.run.id in failed))
