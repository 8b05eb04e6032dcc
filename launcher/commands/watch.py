"""`watch`: the progress of runs until they end. Leaving it leaves the runs alone."""

from __future__ import annotations

import sys

from launcher.commands.arguments import Parser, all_runs, newest_run_or_sweep, whole
from launcher.executors import backends
from launcher.runs import run_ids, selection
from launcher.runs.selection import Selection


def main(arguments: list[str]) -> int:
    parser = Parser(
        "watch",
        "[RUN|SWEEP ...]",
        "Show the progress of runs until they have ended; without any, of the newest run or sweep that has not. Ctrl-C "
        "leaves the runs alone. Exit code 0 if all are done, 1 if not.",
    )
    _, names, roots = parser.read(arguments)
    chosen = all_runs(selection.find_all(names, roots) if names else [_newest_unfinished(roots)])
    from launcher.compare.last_words import last_words
    from launcher.ui.live import watch

    states = watch([run.folder for run in chosen], last_words).values()
    if not all(state.finished for state in states):
        what = ", ".join(names) or run_ids.sweep_of(chosen[0].id) or chosen[0].id
        unknown = "; ".join(dict.fromkeys(state.reason for state in states if state.name == "unreachable"))
        known = f"unreachable: {what}: {unknown}" if unknown else f"still running: {what}"
        print(f"\n{known}; `watch` shows it again, `cancel` ends it", file=sys.stderr)
        return 130
    return 0 if all(state.name == "done" for state in states) else 1


def _newest_unfinished(roots: list[str]) -> Selection:
    """The newest live run, with its whole sweep."""
    for run in reversed(selection.unfinished(roots)):
        (seen,) = backends.states_of([run])
        if not seen.state.finished and seen.files.owner.mine:
            return whole("newest unfinished", run)
    return newest_run_or_sweep(roots)
