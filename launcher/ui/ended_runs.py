"""A run that has ended: the last lines of a terminal about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from amp_launcher.shown import some
from launcher.called import as_started
from launcher.runs import log_tail, run_ids, run_roots, slow_ranks, store
from launcher.runs.schema import Hang
from launcher.runs.states import State
from launcher.ui import hints, tables
from launcher.ui.summary import MOST_RANKS, gpus, headline, outcome, place_of, result_of

ENDED_EARLY = ("stopped", "cancelled", "lost")
"""States of runs that `resume` continues as they are."""


def of_run(folder: Path, state: State, now: float, width: int = 0, *, printed: bool = False) -> list[str]:
    """The last lines about one run, for a terminal of so many columns (0: no limit). `printed` says that its output
    was shown, so that the end of its log is left out."""
    rows = [(run_ids.words_of(folder.name), headline(state, now)), *outcome(result_of(folder, state)), *gpus(folder)]
    rows += [*slow_rows(folder, state), *hangs(folder, state)]
    rows.append(("folder", place_of(folder)))
    lines = tables.pairs(rows, width)
    lines += failure(folder, state, printed=printed)
    if state.name in ENDED_EARLY and state.attempt:
        lines.append(as_started(f"{_again(folder)} with: python -m launcher resume {folder.name}"))
    return lines


def _again(folder: Path) -> str:
    """What `resume` does with a run that ended early: continue from a checkpoint, or start over without one."""
    if run_roots.is_remote(str(folder.parent)):
        return "continue"  # its checkpoints are on its host
    saved = any((folder / "checkpoints").glob("step-*")) or any(folder.glob(f"{store.ARMS}/*/checkpoints/step-*"))
    return "continue from the last checkpoint" if saved else "start it again"


def hangs(folder: Path, state: State) -> list[tuple[str, str]]:
    """Where the ranks of the attempt wait that took no step for long, those at one place in one row, the fewest first:
    the rank that differs keeps the others waiting."""
    files = sorted((folder / "attempts" / str(state.attempt)).glob("hang-rank*.json"))
    places: dict[str, list[str]] = {}
    for record in (store.read(Hang, file) for file in files):
        if record.rank is not None:
            places.setdefault(record.where or "nobody knows where", []).append(f"{record.rank} on {record.node}")
    rows = []
    for place, ranks in sorted(places.items(), key=lambda item: len(item[1])):
        rows.append(("no step", f"rank{'s' * (len(ranks) > 1)} {some(ranks, MOST_RANKS)}: {place}"))
    return rows


def slow_rows(folder: Path, state: State) -> list[tuple[str, str]]:
    """The ranks that the others wait for, with their nodes."""
    rows = []
    for one in slow_ranks.find(slow_ranks.read(folder, state.attempt))[:MOST_RANKS]:
        does = f"is at {one.place}" if one.place else "does not wait"
        text = f"rank {one.rank} on {one.node} {does} for {one.share:.0%} of the time, the others for {one.others:.0%}"
        rows.append(("slow rank", tables.clean(text)))
    return rows


def failure(folder: Path, state: State, *, printed: bool = False) -> list[str]:
    """The last output of a failed or lost run, and a known remedy; nothing for another run. `printed` says that its
    output was shown already."""
    if state.name not in ("failed", "lost"):
        return []
    path, last = log_tail.read(folder, state.attempt)
    # Of several ranks, the one that failed first is hard to find in the output.
    shows = bool(last) and (not printed or not isinstance(path, Path))
    lines = [f"the end of {path}:", *(f"  {tables.clean(line)}" for line in last)] if shows else []
    return [*lines, *remedy(state, last)]


def remedy(state: State, last: Sequence[str]) -> list[str]:
    """What helps a run that ended with these lines, where that is known."""
    known = hints.known("\n".join([state.reason, *last]))
    return [f"what helps: {known}"] if known else []
