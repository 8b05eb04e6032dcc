"""A comparison's result.json: its arms side by side, in the format of any run's result.

    python -m launcher.compare.write_result RUN done|failed|stopped ATTEMPT

writes it as the last act of the comparison's job; nothing else does.

Values common to all arms stand where a run has them, null where they differ; "comparison" lists the arms:

    {"control": label, "rounds": .., "steps": .., "tolerance": .., "verdict": sentence, "sentences": [..], "arms": [
      {"arm": "00", "label": .., "state": .., "reason": .., "framework": .., "mechanism": .., "batch": ..,
       "tokens_per_second": .., "samples_per_second": .., "steps_per_second": .., all null but one,
       "by_round": [.., null where a round was not measured],
       "ratio": {"mean": .., "low": .., "high": .., "confidence": 0.95, "rounds": ..}, null of the control and where
       "unrelated", a sentence or null, says why there is none,
       "loss": .., "loss_gap": {"last": .., "low": .., "high": ..}, "accuracy": .., "peak_memory_bytes": ..,
       "skipped_steps": .., "half_flop_share": .., "proof": .., "result": "arms/00/result.json"}]}
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from amp_launcher import result
from amp_launcher.metrics import RATES, finite
from amp_launcher.precision.findings import WORST_FIRST
from amp_launcher.result import Result
from launcher.compare.arm_ratios import MeasuredArm, compare
from launcher.compare.intervals import CONFIDENCE
from launcher.compare.report import settings_of
from launcher.compare.verdict import remarks, verdict
from launcher.report import read
from launcher.report.figures import figures
from launcher.report.read import Evidence, group_of
from launcher.runs import arms, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import Name, State
from launcher.ui import tables

_STATUS: Mapping[str, Literal["done", "failed", "stopped"]] = {
    "done": "done",
    "stopped": "stopped",
    "cancelled": "stopped",
}


def document(folder: Path, state: State) -> dict[str, Any] | None:
    """The result of the comparison in this folder, which has ended; None where its plan has no arms."""
    plan = store.read(PlanRecord, folder / "plan.json")
    how = settings_of(plan)
    evidence = read.of_arms(folder, plan, state, read=True, block=how.steps)
    if not evidence:
        return None
    compared = compare(evidence, how.steps)
    summary = {
        "control": compared[0].label,
        **dataclasses.asdict(how),
        "verdict": verdict(compared, how),
        "sentences": list(remarks(compared)),
        "arms": [_of_arm(arm, how.rounds) for arm in compared],
    }
    return {**result.document(_of_run(folder.name, state, evidence)), "comparison": finite(summary)}


def write(folder: Path, state: State) -> None:
    """Write the result of the comparison in this folder; nothing where its plan has no arms. Raises `OSError`."""
    values = document(folder, state)
    if values is not None:
        store.write_json(folder / arms.RESULT, values)


def _of_run(name: str, state: State, evidence: Sequence[Evidence]) -> Result:
    documents = [run.documents["result.json"] for run in evidence]
    measured = [run.result for run in evidence if run.has_result]
    measured_documents = [outcome for outcome in documents if outcome]
    return Result(
        run=name,
        status=_STATUS.get(state.name, "failed"),
        reason=None if state.name == "done" else _reason(state, evidence),
        attempts=state.attempt,
        framework=_common(run.plan.framework for run in evidence) or "",
        recipe=_common(run.plan.recipe for run in evidence) or "",
        mechanism=_common(run.result.mechanism for run in evidence) or "",
        requested=_shared(documents, "requested"),
        effective=_shared(documents, "effective"),
        observed={**_shared(documents, "observed"), **_proof(evidence)},
        throughput={
            "unit": _common(figures(run).unit for run in evidence),
            **dict.fromkeys(("mean", "median", "p10", "p90")),
        },
        peak_memory_bytes=max((memory for run in evidence if (memory := figures(run).memory)), default=None),
        loss={"first": None, "last": None},
        eval={},
        loss_scale={"final": None, "skipped_steps": sum(outcome.loss_scale.skipped_steps or 0 for outcome in measured)},
        updates={
            key: sum(getattr(outcome.updates, key) or 0 for outcome in measured) for key in ("attempted", "applied")
        },
        epochs=None,
        steps=sum(run.metrics.steps for run in evidence if run.metrics),
        wall_seconds=sum(outcome.wall_seconds or 0 for outcome in measured),
        world_size=max((outcome.world_size or 1 for outcome in measured), default=1),
        determinism="exact" if all(run.result.determinism == "exact" for run in evidence) else "best_effort",
        resumed_from=None,
        versions=_shared(measured_documents, "versions"),
        digests=_shared(measured_documents, "digests"),
        hardware=_shared(measured_documents, "hardware"),
    )


def _reason(state: State, evidence: Sequence[Evidence]) -> str | None:
    """Why it is not done: the arms that failed, or the comparison's own reason."""
    failed = [f"{run.label}: {run.state.reason}" for run in evidence if run.state.name == "failed"]
    return "; ".join(failed) or state.reason or None


def _proof(evidence: Sequence[Evidence]) -> dict[str, str]:
    """Proved if every arm is, else the worst verdict."""
    verdicts = [run.result.observed.verdict or "unknown" for run in evidence]
    worst = next((candidate for candidate in WORST_FIRST if candidate in verdicts), "unknown")
    if worst == "proved":
        return {"verdict": worst, "why": "every arm is proved"}
    why = [
        f"{arm.label}: {arm.result.observed.why or 'nothing was observed'}"
        for arm, verdict in zip(evidence, verdicts, strict=True)
        if verdict == worst
    ]
    return {"verdict": worst, "why": "; ".join(why)}


def _of_arm(arm: MeasuredArm, rounds: int) -> dict[str, Any]:
    state, figures, ratio, gaps = arm.evidence.state, arm.figures, arm.ratio, arm.gaps or (None, None)
    return {
        "arm": arm.evidence.run.id,
        "label": tables.clean(arm.label),
        "state": state.name,
        "reason": state.reason or None,
        "framework": arm.evidence.plan.framework,
        "mechanism": arm.figures.mechanism,
        "batch": figures.batch,
        **{key: figures.rate if figures.unit == unit else None for key, unit in RATES},
        "by_round": [arm.rates.get(number) for number in range(rounds)],
        "ratio": ratio
        and {"mean": ratio.mean, "low": ratio.low, "high": ratio.high, "confidence": CONFIDENCE, "rounds": ratio.pairs},
        "unrelated": arm.unrelated or None,
        "loss": figures.loss,
        "loss_gap": None if arm.gap is None else {"last": arm.gap, "low": gaps[0], "high": gaps[1]},
        "accuracy": figures.accuracy,
        "peak_memory_bytes": figures.memory,
        "skipped_steps": figures.skipped,
        "half_flop_share": figures.half_share,
        "proof": figures.verdict or "unknown",
        "result": f"{store.ARMS}/{arm.evidence.run.id}/result.json" if arm.evidence.has_result else None,
    }


def _common(values: Iterable[Any]) -> Any:
    """The one value that all are; None where they differ."""
    first, *others = values
    return first if all(other == first for other in others) else None


def _shared(results: Sequence[Mapping[str, Any]], group: str) -> dict[str, Any]:
    """The values that are the same in all results that have them, by key; None where they differ."""
    groups = [group_of(document, group) for document in results]
    keys = dict.fromkeys(key for values in groups for key in values)
    return {key: _common(values.get(key) for values in groups if key in values or not values) for key in keys}


if __name__ == "__main__":
    _folder, _outcome, _attempt = sys.argv[1:]
    write(Path(_folder), State(cast(Name, _outcome), attempt=int(_attempt)))
