"""Runs that have ended: the last lines of a terminal about one run, or about those of a sweep."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from amp_launcher.shown import some
from launcher import units
from launcher.called import as_started
from launcher.runs import log_tail, run_ids, run_roots, slow_ranks, store
from launcher.runs.schema import Hang, PlanRecord
from launcher.runs.states import State
from launcher.ui import hints, tables
from launcher.ui.summary import (
    MOST_RANKS,
    RATES,
    gpus,
    headline,
    label,
    measurements,
    outcome,
    place_of,
    result_of,
)
from launcher.ui.tables import Column


def last_words(states: Mapping[Path, State], width: int = 0) -> list[str]:
    """What a terminal of so many columns (0: no limit) says of runs that have ended: all that is known of one, a table
    of several."""
    now = time.time()
    if len(states) == 1:
        ((folder, state),) = states.items()
        return of_run(folder, state, now, width)
    return of_sweep(states, now, width)


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
    return [*lines, *_remedy(state, last)]


def _remedy(state: State, last: Sequence[str]) -> list[str]:
    """What helps a run that ended with these lines, where that is known."""
    remedy = hints.known("\n".join([state.reason, *last]))
    return [f"what helps: {remedy}"] if remedy else []


def of_sweep(states: Mapping[Path, State], now: float, width: int = 0) -> list[str]:
    """A table of the runs of a sweep, why the ones that failed did, what helps them, and how to continue it."""
    results = [result_of(folder, state) for folder, state in states.items()]
    measured = measurements(list(states.values()), results, now)
    losses = [units.number(result.loss.last) for result in results]
    sizes = Column("PEAK MEMORY", [units.size(result.peak_memory_bytes) for result in results], right=True)
    columns = [
        Column("RUN", list(map(label, states))),
        Column("STATE", [state.name for state in states.values()]),
        measured[0],
        *([Column("LOSS", losses, right=True)] if set(losses) != {"-"} else []),
        *measured[1:-1],
        sizes,
        measured[-1],
    ]
    spare = ("PEAK MEMORY", "TIME", *RATES, "ACCURACY", "LOSS", "PROOF")
    lines = tables.lines(columns, width, spare)
    remedies: dict[str, None] = {}
    for folder, state in states.items():
        if state.name in ("failed", "lost"):
            _, last = log_tail.read(folder, state.attempt)
            lines.append(f"{folder.name}: {tables.clean(headline(state, now))}")
            if last and last[-1].strip() and last[-1].strip() not in state.reason:
                lines.append(f"  {tables.clean(last[-1].strip())}")
            remedies.update(dict.fromkeys(_remedy(state, last)))
    lines += remedies
    roots = dict.fromkeys(str(folder.parent) for folder in states)
    sweep = run_ids.sweep_of(next(iter(states)).name)
    chain = store.read(PlanRecord, next(iter(states)) / "plan.json", ("job",)).job
    named = f"{'chain' if chain else 'sweep'} {sweep}, " if sweep else ""
    lines.append(f"{named}folders in {', '.join(roots)}")
    ended_early = [folder.name for folder, state in states.items() if state.name in ENDED_EARLY and state.attempt]
    if ended_early:
        sweeps = dict.fromkeys(run_ids.sweep_of(name) or name for name in ended_early)
        lines += [as_started(f"continue with: python -m launcher resume {name}") for name in sweeps]
    return lines
