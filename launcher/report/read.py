"""A run's folder as evidence: the data for a report, and the problems met in reading it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from launcher.executors import backends
from launcher.report import chosen, metrics
from launcher.report.metrics import Metrics
from launcher.runs import arms, run_ids, store
from launcher.runs.decode import decode
from launcher.runs.schema import PlanRecord, Provenance, ResultRecord
from launcher.runs.states import State
from launcher.runs.store import Damaged, Run
from launcher.script import telemetry
from launcher.script.telemetry import Telemetry
from launcher.ui import summary

T = TypeVar("T")

NOTES = 5
"""Lines of nvidia-smi's other output that a report repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One run as read from its folder. Records are empty where there is no such file."""

    run: Run
    label: str
    """Its label for people, unique in the report."""
    colour: int | None = 0
    """Of its bars and curves; none is grey, of a run that is one of very many."""
    state: State
    plan: PlanRecord
    result: ResultRecord
    """Of the last attempt."""
    provenance: Provenance
    documents: Mapping[str, Mapping[str, Any]]
    """The raw JSON of the three by file name, for listing every value whatever its name."""
    metrics: Metrics | None
    """None where there are none, or where they were not read."""
    telemetry: Telemetry = dataclasses.field(default_factory=Telemetry)
    """Of its GPUs and hosts; empty where there is none, or where it was not read."""
    problems: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def has_result(self) -> bool:
        return self.result != ResultRecord()


def gather(wanted: Sequence[Run]) -> list[Evidence]:
    """The evidence of each run, in the same order; a comparison is its arms. Of very many runs some have no steps."""
    seen = backends.states_of(wanted)
    backends.settle(seen)
    runs: list[Evidence] = []
    for entry in seen:
        own = of_run(entry.run.folder, entry.run, entry.state, read=False)
        words = run_ids.words_of(entry.run.id)
        own_arms = of_arms(entry.run.folder, own.plan, entry.state, read=False)
        runs += [dataclasses.replace(arm, label=f"{words} {arm.label}") for arm in own_arms] or [own]
    labels = _distinct([run.run for run in runs], [run.label for run in runs])
    order, _ = chosen.best_first([run.result for run in runs])
    reading = chosen.to_read(order, [run.run.folder for run in runs])
    with_curves = [with_steps(run) if index in reading else run for index, run in enumerate(runs)]
    return _coloured([dataclasses.replace(run, label=label) for run, label in zip(with_curves, labels, strict=True)])


def _coloured(runs: Sequence[Evidence]) -> list[Evidence]:
    order, _ = chosen.best_first([run.result for run in runs])
    return [dataclasses.replace(run, colour=colour) for run, colour in zip(runs, chosen.colours(order), strict=True)]


def of_run(folder: Path, run: Run, state: State, read: bool, block: int = 0) -> Evidence:
    """The evidence in the folder; with metrics if `read`, in blocks of so many steps."""
    problems: list[str] = []

    documents: dict[str, Mapping[str, Any]] = {}

    def record(cls: type[T], name: str) -> T:
        path = store.plan_path(folder) if name == "plan.json" else folder / name
        try:
            documents[name] = store.read_json(path) or {}
        except Damaged as error:
            problems.append(f"{name} can't be read: {str(error).removeprefix(f'{path}: ')}")
            documents[name] = {}
        values, wrong = decode(cls, documents[name])
        problems.extend(f"{name}: {problem}, and left out" for problem in wrong)
        return values

    plan, result = record(PlanRecord, "plan.json"), record(ResultRecord, "result.json")
    if summary.if_of(result, state) != result:
        result, documents["result.json"] = ResultRecord(), {}
    evidence = Evidence(
        run=run,
        label=summary.label_of(folder.name, plan),
        state=state,
        plan=plan,
        result=result,
        provenance=record(Provenance, "provenance.json"),
        documents=documents,
        metrics=None,
        problems=tuple(problems),
    )
    return with_steps(evidence, block) if read else evidence


def with_steps(evidence: Evidence, block: int = 0) -> Evidence:
    """The same with its metrics, in blocks of so many steps, and its telemetry."""
    folder = evidence.run.folder
    rows, sampled = metrics.read(folder / "metrics.jsonl", block), telemetry.read(folder)
    problems = (*(rows.problems if rows else ()), *(f"telemetry: {note}" for note in sampled.notes[:NOTES]))
    return dataclasses.replace(evidence, metrics=rows, telemetry=sampled, problems=(*evidence.problems, *problems))


def of_arms(folder: Path, plan: PlanRecord, comparison: State, read: bool, block: int = 0) -> list[Evidence]:
    """The arms of the comparison in the folder, the control first; none of a plain run."""
    name = "provenance.json"
    document = store.read_or_empty(folder / name) if plan.arms else {}
    return _coloured(
        [
            dataclasses.replace(
                evidence := of_run(arm.run.folder, arm.run, arms.state(arm.run, comparison), read, block),
                label=arm.label,
                provenance=decode(Provenance, document)[0],
                documents={**evidence.documents, name: document},
            )
            for arm in arms.of(folder, plan)
        ]
    )


def group_of(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The group of values by that name; empty where there is none, or something else in its place."""
    group = values.get(key)
    return group if isinstance(group, Mapping) else {}


def _distinct(wanted: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """The labels, with the words of their sweeps where two would read alike."""
    if len(set(labels)) == len(labels):
        return list(labels)
    longer = []
    for run, label in zip(wanted, labels, strict=True):
        sweep = run_ids.sweep_of(run.id)
        longer.append(f"{run_ids.words_of(sweep)} {label}" if sweep else label)
    return longer if len(set(longer)) == len(longer) else [run.id for run in wanted]
