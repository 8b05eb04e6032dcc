"""What `python -m launcher` without a word shows: what runs, what ran, and the commands to go on with."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from launcher.called import as_started
from launcher.commands import ls
from launcher.executors import backends
from launcher.runs import run_ids, run_roots, selection
from launcher.runs.states import Seen
from launcher.ui import tables

NEWEST = 5
UNFINISHED = 10
MOST = 4
"""Commands that are named."""
_FIRST = (
    ("amp=o1", "train the recipe mnist in that mode, here, now"),
    ("train.py amp=o1", "your own script in that mode, proved"),
    ("compare amp=o0,o1", "what a mode gains, and costs"),
)
_HELP = ("--help", "all verbs, ls and logs among them")


def main() -> int:
    roots = run_roots.named(None)
    chosen = {*selection.newest(roots, NEWEST), *selection.unfinished(roots)[-UNFINISHED:]}
    seen = backends.states_of(sorted(chosen, key=lambda run: run.id, reverse=True))
    backends.settle(seen)
    print("\n".join(ls.listing(seen, 0, roots, tables.width_of(sys.stdout))), end="\n\n")
    own = [entry for entry in seen if entry.files.owner.mine]
    commands = [*[*_of_runs(own, _spoken(roots)), *_FIRST][: MOST - 1], _HELP]
    width = max(len(words) for words, _ in commands)
    print(as_started("\n".join(f"  python -m launcher {words:{width}}  {what}" for words, what in commands)))
    return 0


def _spoken(roots: Sequence[str]) -> Callable[[str], str]:
    """How people say an id: by its words, or whole where two have the same words."""
    ids = {name for root in roots for name in selection.run_names(root)}
    words = Counter(map(run_ids.words_of, {*ids, *filter(None, map(run_ids.sweep_of, ids))}))
    return lambda name: name if words[run_ids.words_of(name)] > 1 else run_ids.words_of(name)


def _of_runs(own: Sequence[Seen], spoken: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """The words that go on with the newest run that has not ended and with the newest that has, and what they do."""
    active, ended = (
        next((entry for entry in own if entry.state.finished is finished), None) for finished in (False, True)
    )
    if active:
        yield f"watch {_whole(active, spoken)}", "follow it until it has ended"
    if ended and ended.state.name == "done":
        yield f"report {_whole(ended, spoken)}", "what it reached; --html FILE for a page"
    elif ended:
        yield f"logs {spoken(ended.run.id)}", f"what it wrote; it is {ended.state.name}"
        yield f"resume {spoken(ended.run.id)}", "continue it"
    if active:
        yield f"cancel {_whole(active, spoken)}", "ask it to save and stop"


def _whole(seen: Seen, spoken: Callable[[str], str]) -> str:
    """The sweep that the run is in, or the run."""
    return spoken(run_ids.sweep_of(seen.run.id) or seen.run.id)
