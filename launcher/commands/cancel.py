"""`cancel`: end runs, saved if they can be."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from launcher.commands.arguments import Parser, chosen, newest
from launcher.executors import backends, stopping
from launcher.executors.stopping import Ended
from launcher.runs import ownership, run_roots
from launcher.runs.store import Run
from launcher.ui import summary


def main(arguments: list[str]) -> int:
    parser = Parser(
        "cancel",
        "[--now] [RUN|SWEEP ...]",
        "Ask runs to save and stop: recipes at their next step, scripts by script.stop_signal. What has not ended "
        "after cluster.stop_before seconds is killed with all its processes. Without any, your newest run.",
    )
    parser.add_argument("--now", action="store_true", help="kill at once, without a checkpoint")
    options, names, roots = parser.read(arguments)
    runs = chosen(names, roots) if names else [newest(roots, own=True)]
    return end("cancel", runs, now=options.now)


def end(verb: str, runs: Sequence[Run], *, now: bool = False) -> int:
    """End the runs for that verb, print how each ended, and return the exit code."""
    ownership.refuse_other_users(verb, runs)
    before = {entry.run: entry.state for entry in backends.states_of(runs)}
    try:
        ended = stopping.cancel(runs, now=now, say=lambda text: print(text, file=sys.stderr))
    except KeyboardInterrupt:
        print("\nthe runs stay asked to stop; `ls` says how they stand", file=sys.stderr)
        return 130
    for outcome in ended:
        print(f"{outcome.seen.run.id}  {_line(outcome, already=before[outcome.seen.run].finished)}")
    if any(outcome.seen.state.name == "unreachable" for outcome in ended):
        return 3
    return 1 if any(outcome.why_not for outcome in ended) else 0


def _line(outcome: Ended, *, already: bool) -> str:
    state, why = outcome.seen.state, outcome.why_not
    if why and state.name == "unreachable":
        # The reason of a run over SSH has its last known state too.
        return f"not ended: {state.reason if run_roots.is_remote(outcome.seen.run.root) else why}"
    headline = summary.headline(state, time.time())
    return f"{'already ' * already}{headline}{'; not ended: ' if why else ''}{why}"
