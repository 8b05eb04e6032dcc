"""A run's folder as evidence: everything that a report may speak of, and what of it can't be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.executors import backends
from launcher.report import chosen, metrics
from launcher.report.metrics import Metrics
from launcher.runs import arms, run_ids, shapes, store
from launcher.runs.states import State
from launcher.runs.store import Damaged, Run
from launcher.script import telemetry
from launcher.script.telemetry import Telemetry
from launcher.ui import summary

NOTES = 5
"""Lines of what nvidia-smi said besides its samples that a report repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One run as its folder tells it. Dictionaries are empty where there is no such file."""

    run: Run
    label: str
    """What a person calls it, unlike that of any other run of the report."""
    colour: int | None = 0
    """Of its bars and curves; none is grey, of a run that is one of very many."""
    state: State
    plan: dict[str, Any]
    result: dict[str, Any]
    """Of the last attempt."""
    provenance: dict[str, Any]
    metrics: Metrics | None
    """None where there are none, or where they were not read."""
    telemetry: Telemetry = dataclasses.field(default_factory=Telemetry)
    """Of its GPUs and hosts; empty where there is none, or where it was not read."""
    problems: tuple[str, ...] = ()
    """What is there and can't be read."""


def gather(wanted: Sequence[Run]) -> list[Evidence]:
    """The evidence of each run, in the same order; a comparison is its arms. Of very many some have no steps."""
    seen = backends.look(wanted)
    backends.settle(seen)
    found: list[Evidence] = []
    for each in seen:
        one = of_run(each.run.folder, each.run, each.state, read=False)
        words = run_ids.words_of(each.run.id)
        own = of_arms(each.run.folder, one.plan, each.state, one.provenance, read=False)
        found += [dataclasses.replace(arm, label=f"{words} {arm.label}") for arm in own] or [one]
    labels = _distinct([each.run for each in found], [each.label for each in found])
    order, _ = chosen.best_first([each.result for each in found])
    reading = chosen.to_read(order, [each.run.folder for each in found])
    whole = [with_steps(each) if index in reading else each for index, each in enumerate(found)]
    return _coloured([dataclasses.replace(each, label=label) for each, label in zip(whole, labels, strict=True)])


def _coloured(found: Sequence[Evidence]) -> list[Evidence]:
    order, _ = chosen.best_first([each.result for each in found])
    return [dataclasses.replace(each, colour=colour) for each, colour in zip(found, chosen.colours(order), strict=True)]


def of_run(folder: Path, run: Run, state: State, read: bool, block: int = 0) -> Evidence:
    """What lies in the folder; metrics only where they are to be `read`, in blocks of so many steps."""
    problems: list[str] = []

    def file(name: str) -> dict[str, Any]:
        try:
            values = store.read_json(folder / name) or {}
        except Damaged as error:
            problems.append(f"{name} can't be read: {str(error).removeprefix(f'{folder / name}: ')}")
            return {}
        found, wrong = shapes.fitting(values, shapes.OF_FILE[name])
        problems.extend(f"{name}: {each}, and left out" for each in wrong)
        return found

    plan, result = file("plan.json"), file("result.json")
    found = Evidence(
        run=run,
        label=summary.label_of(folder.name, plan),
        state=state,
        plan=plan,
        result=summary.if_of(result, state),
        provenance=file("provenance.json"),
        metrics=None,
        problems=tuple(problems),
    )
    return with_steps(found, block) if read else found


def with_steps(evidence: Evidence, block: int = 0) -> Evidence:
    """The same with its metrics, in blocks of so many steps, and its telemetry."""
    folder = evidence.run.folder
    rows, sampled = metrics.read(folder / "metrics.jsonl", block), telemetry.read(folder)
    said = (*(rows.problems if rows else ()), *(f"telemetry: {each}" for each in sampled.notes[:NOTES]))
    return dataclasses.replace(evidence, metrics=rows, telemetry=sampled, problems=(*evidence.problems, *said))


def of_arms(
    folder: Path, plan: dict[str, Any], whole: State, came_from: dict[str, Any], read: bool, block: int = 0
) -> list[Evidence]:
    """The arms of the comparison in the folder, the control first; none of a plain run."""
    return _coloured(
        [
            dataclasses.replace(
                of_run(arm.run.folder, arm.run, arms.state(arm.run, whole), read, block),
                label=arm.label,
                provenance=came_from,
            )
            for arm in arms.of(folder, plan)
        ]
    )


def inner(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The group of values by that name; empty where there is none, or something else in its place."""
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def _distinct(wanted: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """The labels, with the words of their sweeps where two would read alike."""
    if len(set(labels)) == len(labels):
        return list(labels)
    found = []
    for run, label in zip(wanted, labels, strict=True):
        sweep = run_ids.sweep_of(run.id)
        found.append(f"{run_ids.words_of(sweep)} {label}" if sweep else label)
    return found if len(set(found)) == len(found) else [run.id for run in wanted]
