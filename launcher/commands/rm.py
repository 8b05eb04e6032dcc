"""`rm`: move the folders of runs that have ended to the trash of their run root, or delete them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher import units
from launcher.commands.arguments import Parser, all_runs
from launcher.errors import UsageError
from launcher.executors import trash
from launcher.executors.remove import empty, remove
from launcher.runs import ownership, run_roots, selection
from launcher.runs.store import Run

MOST = 20
"""Runs that a question names."""


def main(arguments: list[str]) -> int:
    parser = Parser(
        "rm",
        "[--now] [--yes] [--force] [--forget] [RUN|SWEEP ...]",
        "Move the folders of runs that have ended to RUN_ROOT/.trash, where they stay for a week; secrets go at once. "
        "A RUN named by a beginning only is asked about first.",
    )
    parser.add_argument(
        "--now",
        action="store_true",
        help="delete them at once; without RUN, empty the trash and delete uv's environments that no run uses",
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    parser.add_argument("--force", action="store_true", help="first kill runs that have not ended")
    parser.add_argument(
        "--forget", action="store_true", help="for runs on a host that no longer exists: remove their records here"
    )
    options, names, roots = parser.read(arguments)
    if not names and options.now:
        return _empty(roots, options.yes)
    if not names:
        raise UsageError("rm: name the runs or sweeps to remove (`ls` lists them)")
    what = selection.find_all(names, roots)
    chosen = all_runs(what)
    ownership.refuse_other_users("rm", chosen)
    far = [run for run in chosen if run_roots.is_remote(run.root)]
    near = [run for run in chosen if not run_roots.is_remote(run.root)]
    if near and options.forget:
        raise UsageError(f"rm --forget: {near[0].id} is a run of this machine; leave --forget out")
    for run in near:
        if not options.now and trash.root_of(run) != run.root:
            raise UsageError(
                f"rm: {run.folder} is in the trash; rm --now deletes it, `mv` to its run root brings it back"
            )
    if not options.yes and not all(selected.is_exact for selected in what):
        sizes = {} if options.forget else _sizes(near, far)
        deed = "delete" if options.now else "forget" if options.forget else "move to the trash"
        if not _agreed(f"{'among ' * (len(names) > 1)}{' '.join(names)} is a beginning of a name", chosen, sizes, deed):
            return 0
    if far and not options.forget:
        from launcher.ssh import actions

        actions.remove(far, options.force, now=options.now)
    done = "forgotten" if options.forget else "deleted" if options.now else "moved to the trash"
    remove(chosen, options.force, now=options.now, say=lambda run: print(f"{run.id}  {done}"))
    for root in () if options.now else sorted({run.root for run in near}):
        print(trash.told(root), file=sys.stderr)
    return 0


def _sizes(near: Sequence[Run], far: Sequence[Run]) -> dict[Run, int]:
    """Bytes of each run. Raises `LauncherError` where a host does not answer."""
    sizes = {run: trash.size(run) for run in near}
    if far:
        from launcher.ssh import actions

        sizes.update(actions.sizes(far))
    return sizes


def _agreed(why: str, chosen: Sequence[Run], sizes: dict[Run, int], deed: str) -> bool:
    """Whether the person at this terminal agrees. Raises `UsageError` where there is none."""
    width = max((len(run.id) for run in chosen[:MOST]), default=0)
    for run in chosen[:MOST]:
        print(f"{run.id:{width}}  {units.size(sizes.get(run)) if run in sizes else ''}".rstrip(), file=sys.stderr)
    if len(chosen) > MOST:
        print(f"and {len(chosen) - MOST} more", file=sys.stderr)
    if not sys.stdin.isatty():
        raise UsageError(f"rm: {why}; name these runs in full, or say --yes")
    total = f", {units.size(sum(sizes.values()))}" if sizes else ""
    print(f"{deed} ({len(chosen)} run{'s' * (len(chosen) != 1)}{total})? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _empty(roots: Sequence[str], yes: bool) -> int:
    """Empty the trashes of run roots, and delete the environments that no run uses."""
    runs = [run for root in roots for run in trash.runs_in(root)]
    if not runs:
        print("the trash is empty", file=sys.stderr)
    sizes = {run: trash.size(run) for run in runs}
    why = "rm --now without a RUN empties the trash"
    if not runs or yes or _agreed(why, runs, sizes, "delete what is in the trash"):
        unused = empty(roots)
        for run in runs:
            print(f"{run.id}  deleted")
        for folder, size in unused:
            print(f"{folder}  deleted, {units.size(size)}: no run uses this environment any more")
    return 0
