"""The report of runs: of a comparison what its arms differ in, of others their results side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launcher import units
from launcher.compare import report
from launcher.executors import backends
from launcher.report import read, sections
from launcher.report.document import Document
from launcher.runs import run_ids, store
from launcher.runs.schema import PlanRecord, SearchRecord
from launcher.runs.selection import Selection
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ui import sweep_table

NAMED = 4
"""Runs and sweeps that a title names."""


def of(what: Sequence[Selection], chosen: Sequence[Run]) -> Document:
    """The report of these runs, which `what` names."""
    if len(chosen) == 1 and store.read(PlanRecord, chosen[0].folder / "plan.json", ("arms",)).arms:
        (seen,) = found = backends.states_of(chosen)
        backends.settle(found)
        return of_one(seen)
    names = list(dict.fromkeys(selected.sweep or selected.runs[0].id for selected in what))
    evidence = read.gather(chosen)
    lead = _best_first(what[0].sweep, evidence) if len(what) == 1 and what[0].sweep else ""
    document = sections.of_runs(_title(names), evidence)
    return dataclasses.replace(document, lead=(lead, *document.lead)) if lead else document


def _best_first(sweep: str, evidence: list[read.Evidence]) -> str:
    """Order the runs of a search by what it searched by, and say so; empty for another sweep."""
    record = store.search_folder(evidence[0].run.root, sweep) / store.SEARCH
    search = store.read(SearchRecord, record, own_in=evidence[0].run.root)
    if search.metric is None:
        return ""
    measured = {run.run: sweep_table.measures(run.result) for run in evidence}
    values = {run: named.get(sweep_table.plain(search.metric, named)) for run, named in measured.items()}
    sign = 1 if search.lowest else -1
    evidence.sort(key=lambda run: (values[run.run] is None, sign * (values[run.run] or 0.0)))
    best = values[evidence[0].run]
    found = f" The best is {evidence[0].label}, with {units.number(best)}." if best is not None else ""
    return f"A search by {search.metric}, {'lowest' if search.lowest else 'highest'} first.{found}"


def _title(names: Sequence[str]) -> str:
    """What the report is of: a few by their words, many by their number."""
    if len(names) == 1:
        return names[0]
    *first, last = map(run_ids.words_of, names)
    return f"{', '.join(first)} and {last}" if len(names) <= NAMED else f"{len(names)} runs and sweeps"


def of_one(seen: Seen) -> Document:
    """The report of one run, whose state is known."""
    alone = _comparison(seen)
    return alone or sections.of_runs(seen.run.id, [read.of_run(seen.run.folder, seen.run, seen.state, read=True)])


def _comparison(seen: Seen) -> Document | None:
    """The report of a comparison, if the run is one."""
    run, plan = seen.run, store.read(PlanRecord, seen.run.folder / "plan.json")
    if not (plan.arms and plan.comparison):
        return None
    title = f"{plan.name}, {run.id}" if plan.name else run.id
    return report.document(title, run.folder, seen.state, plan)
