"""Listing runs, and finding those that a person names."""

from __future__ import annotations

import contextlib
import heapq
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from launcher.errors import UsageError
from launcher.runs import names, ownership, run_ids
from launcher.runs.schema import PlanRecord
from launcher.runs.store import UNFINISHED, Run, read


class Selection(NamedTuple):
    sweep: str | None
    runs: tuple[Run, ...]
    is_exact: bool = True
    """The text is a whole name, and not the beginning of one."""


def run_names(root: str) -> list[str]:
    """Every run in the root, in no order. Only names are read: this has to be quick over ten thousand of them."""
    try:
        return [name for name in os.listdir(root) if run_ids.is_id(name)]
    except OSError:  # one that is gone, or that may not be read, hides no other
        return []


def sweep_names(root: str) -> set[str]:
    """Every sweep that has a run in the root."""
    return {sweep for name in run_names(root) if (sweep := run_ids.sweep_of(name))}


def unfinished(roots: Iterable[str]) -> list[Run]:
    """Runs with a marker, oldest first."""
    runs = []
    for root in roots:
        with contextlib.suppress(OSError):
            runs += [Run(root, name) for name in os.listdir(f"{root}/{UNFINISHED}") if run_ids.is_id(name)]
    return sorted(runs, key=lambda run: run.id)


def newest_own(roots: Iterable[str]) -> Run | None:
    """The caller's newest run of all roots together."""
    return next((run for run in newest(roots) if ownership.is_mine(run.path, run.root)), None)


def newest(roots: Iterable[str], count: int = sys.maxsize) -> list[Run]:
    """The newest runs of all roots together, newest first, or all."""
    names: list[tuple[str, str]] = []
    for root in roots:
        names += [(name, root) for name in heapq.nlargest(count, run_names(root))]
    return [Run(root, run) for run, root in heapq.nlargest(count, names)]


def find(text: str, roots: Sequence[str]) -> Selection:
    """What the text names in the roots, or the run whose folder it is. Raises `UsageError` for none, or several."""
    return find_all([text], roots)[0]


def find_all(texts: Sequence[str], roots: Sequence[str]) -> list[Selection]:
    """What each text names, all of them before anything is done; the roots are read once, however many there are.
    Numbers after a sweep name its cells, and names after a chain its jobs."""
    index = _Index(roots)
    found: list[Selection] = []
    whole: Selection | None = None
    for text in texts:
        cell = whole and (_cell(whole, text) if text.isdecimal() else _job(whole, text))
        if cell:
            if found[-1] is whole:
                found.pop()
            found.append(cell)
        else:
            found.append(selected := index.find(text))
            whole = selected if selected.sweep else None
    return found


def _cell(whole: Selection, text: str) -> Selection:
    """The cell of that number of a sweep. Raises `UsageError`."""
    numbers = {run.id.rpartition("-")[2]: run for run in whole.runs}
    for number, run in numbers.items():
        if number.lstrip("0") == text.lstrip("0"):
            return Selection(None, (run,), whole.is_exact)
    raise UsageError(f"{whole.sweep} has no cell {text[:20]}: the first is {min(numbers)}, the last {max(numbers)}")


def _job(whole: Selection, text: str) -> Selection | None:
    """The job of that name of a chain; None for another text."""
    jobs = (
        run for run in whole.runs if read(PlanRecord, f"{run.path}/plan.json", ("job",), own_in=run.root).job == text
    )
    return next((Selection(None, (run,), whole.is_exact) for run in jobs), None)


class _Index:
    """The runs and sweeps of some roots, by their ids and by the names that runs were given."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = {root: run_names(root) for root in roots}
        self._runs: dict[str, list[str]] = {}
        self._sweeps: dict[str, list[str]] = {}
        """Of each the roots that have it."""
        for root, runs in self._roots.items():
            for run in runs:
                self._runs.setdefault(run, []).append(root)
            for sweep in set(filter(None, map(run_ids.sweep_of, runs))):
                self._sweeps.setdefault(sweep, []).append(root)

    def find(self, text: str) -> Selection:
        if "/" in text and os.path.isdir(text) and run_ids.is_id(os.path.basename(folder := os.path.abspath(text))):
            return Selection(None, (Run(*os.path.split(folder)),))
        if text in self._runs or text in self._sweeps:  # a whole id, as a shell writes a thousand of them
            match = run_ids.Match(text, text in self._sweeps)
        else:
            match = run_ids.resolve(text, self._runs, self._sweeps, lambda: self._named(text))
        holders = (self._sweeps if match.is_sweep else self._runs)[match.id]
        if len(holders) > 1:
            raise UsageError(f"{match.id} is in {len(holders)} run roots: add run_root={' or run_root='.join(holders)}")
        if match.is_sweep:
            return Selection(match.id, tuple(sweep_runs(holders[0], match.id)), match.is_exact)
        return Selection(None, (Run(holders[0], match.id),), match.is_exact)

    def _named(self, text: str) -> run_ids.Named:
        """Runs that a text means other than by their ids: unfinished cells of that number, as `watch` shows them, and
        runs that were given it as their name."""
        cells = (run.id for run in unfinished(self._roots) if run_ids.sweep_of(run.id)) if text.isdecimal() else ()
        found = names.find(text, self._roots)
        return found._replace(own=[*found.own, *(cell for cell in cells if cell.endswith(f"-{text}"))])


def sweep_runs(root: str, sweep: str) -> list[Run]:
    """The runs of a sweep that still have a folder, in the order of its cells; of one of the caller's own, which
    another user could give further cells in a shared root, those that are the caller's."""
    cells = (name for name in run_names(root) if run_ids.sweep_of(name) == sweep)
    runs = [Run(root, name) for name in sorted(cells, key=lambda name: (len(name), name))]
    return [run for run in runs if ownership.is_mine(run.path, root)] or runs
