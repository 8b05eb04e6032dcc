"""Listing runs, and finding those that a person names."""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.errors import UsageError
from launcher.runs import ownership, run_ids
from launcher.runs.schema import PlanRecord
from launcher.runs.store import SWEEPS, UNFINISHED, Run, read, read_or_empty


class Selection(NamedTuple):
    """The run, or the runs of the sweep, that a text names."""

    sweep: str | None
    runs: tuple[Run, ...]


def run_names(root: str) -> list[str]:
    """Every run in the root, in no order. Only names are read: this has to be quick over ten thousand of them."""
    try:
        return [name for name in os.listdir(root) if run_ids.is_id(name)]
    except OSError:  # one that is gone, or that may not be read, hides no other
        return []


def sweep_names(root: str) -> list[str]:
    with contextlib.suppress(OSError):
        names = (name[: -len(".json")] for name in os.listdir(f"{root}/{SWEEPS}") if name.endswith(".json"))
        return [name for name in names if run_ids.is_id(name)]
    return []


def unfinished(roots: Iterable[str]) -> list[Run]:
    """Runs with a marker, oldest first."""
    runs = []
    for root in roots:
        with contextlib.suppress(OSError):
            runs += [Run(root, name) for name in os.listdir(f"{root}/{UNFINISHED}") if run_ids.is_id(name)]
    return sorted(runs, key=lambda run: run.id)


def newest_own(roots: Iterable[str]) -> Run | None:
    """The caller's newest run of all roots together."""
    runs = ((name, root) for root in roots for name in run_names(root))
    for name, root in sorted(runs, reverse=True):
        if ownership.is_mine(f"{root}/{name}", root):
            return Run(root, name)
    return None


def newest(roots: Iterable[str], count: int) -> list[Run]:
    """The newest runs of all roots together, newest first."""
    names: list[tuple[str, str]] = []
    for root in roots:
        names += [(name, root) for name in heapq.nlargest(count, run_names(root))]
    return [Run(root, run) for run, root in heapq.nlargest(count, names)]


def find(text: str, roots: Sequence[str]) -> Selection:
    """The run or sweep that the text names in the roots. Raises `UsageError` where it names none, or several."""
    return find_all([text], roots)[0]


def find_all(texts: Sequence[str], roots: Sequence[str]) -> list[Selection]:
    """What each text names, all of them before anything is done; the roots are read once, however many there are."""
    where: dict[str, list[str]] = {}
    sweeps: dict[str, list[str]] = {}
    for root in roots:
        for name in run_names(root):
            where.setdefault(name, []).append(root)
        for name in sweep_names(root):
            sweeps.setdefault(name, []).append(root)
    return [_find(text, roots, where, sweeps) for text in texts]


def _find(
    text: str, roots: Sequence[str], where: Mapping[str, Sequence[str]], sweeps: Mapping[str, Sequence[str]]
) -> Selection:
    """Among runs and sweeps, each with the roots that have it."""
    if text in where or text in sweeps:  # a whole name, as a shell writes a thousand of them
        match = run_ids.Match(text, text in sweeps)
    else:
        match = run_ids.resolve(text, where, sweeps, lambda: _meant(text, roots, where))
    holders = (sweeps if match.is_sweep else where)[match.id]
    if len(holders) > 1:
        raise UsageError(f"{match.id} is in {len(holders)} run roots: add run_root={' or run_root='.join(holders)}")
    if match.is_sweep:
        return Selection(match.id, tuple(sweep_runs(holders[0], match.id)))
    return Selection(None, (Run(holders[0], match.id),))


def _meant(text: str, roots: Sequence[str], where: Mapping[str, Sequence[str]]) -> list[str]:
    """Runs that a text means other than by their ids: unfinished cells of that number, as `watch` shows them, else
    runs that were given it as their name."""
    if not text:
        return []
    if text.isdecimal():
        return [run.id for run in unfinished(roots) if run_ids.sweep_of(run.id) and run.id.endswith(f"-{text}")]
    return [
        run
        for run in where
        if any(read(PlanRecord, f"{root}/{run}/plan.json", ("name",)).name == text for root in where[run])
    ]


def sweep_runs(root: str, sweep: str) -> list[Run]:
    """The runs of a sweep that still have a folder, in the order of its cells.

    A record that another user wrote says nothing: it could name any run.
    """
    recorded = read_or_empty(f"{root}/{SWEEPS}/{sweep}.json", own_in=root).get("runs")
    cells = [name for name in recorded if isinstance(name, str)] if isinstance(recorded, list) else run_names(root)
    names = [cell for cell in dict.fromkeys(cells) if run_ids.is_id(cell) and run_ids.sweep_of(cell) == sweep]
    if not isinstance(recorded, list):
        names.sort()
    return [Run(root, name) for name in names if os.path.isdir(f"{root}/{name}")]
