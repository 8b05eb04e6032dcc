"""`rm`: delete the folders of runs that have ended."""

from __future__ import annotations

from launcher.commands.arguments import Parser, all_runs, split
from launcher.errors import UsageError
from launcher.executors.remove import remove
from launcher.runs import ownership, run_roots, selection


def main(arguments: list[str]) -> int:
    description = "Delete the folders of runs that have ended. There is no confirmation."
    parser = Parser("rm", "[--force] [--forget] RUN|SWEEP ...", description)
    parser.add_argument("--force", action="store_true", help="first kill runs that have not ended")
    parser.add_argument(
        "--forget", action="store_true", help="for runs on a host that no longer exists: delete their records here"
    )
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    if not names:
        raise UsageError("rm: name the runs or sweeps to delete (`ls` lists them)")
    what = selection.find_all(names, roots)
    chosen = all_runs(what)
    ownership.refuse_anothers("rm", chosen)
    far = [run for run in chosen if run_roots.is_remote(run.root)]
    if far and not options.forget:
        from launcher.ssh import actions

        actions.remove(far, options.force)
    near = [run for run in chosen if not run_roots.is_remote(run.root)]
    if near and options.forget:
        raise UsageError(f"rm --forget: {near[0].id} is a run of this machine; leave --forget out")
    done = "forgotten" if options.forget else "deleted"
    sweeps = [selected.sweep for selected in what]
    remove(chosen, options.force, roots=roots, sweeps=sweeps, say=lambda run: print(f"{run.id}  {done}"))
    return 0
