"""A published table in the plan of the comparison that repeats it: its figures, and how long its speeds would take."""

from __future__ import annotations

from collections.abc import Iterator

from launcher import units
from launcher.compare import comparison
from launcher.plan.model import Plan, Published, PublishedArm
from launcher.ui.tables import table, wrapped

COLUMNS = {
    "rate": "samples/s",
    "step_seconds": "s/step",
    "epoch_seconds": "s/epoch",
    "memory_gb": "GB",
    "loss": "loss",
    "accuracy": "accuracy",
}
"""Figures of `PublishedArm`, and what their columns are called."""


def lines(plan: Plan, width: int = 0) -> Iterator[str]:
    """What was published of each arm, where, and how long the comparison's steps would take at those speeds; sentences
    in at most `width` columns (0: no limit)."""
    source, how = plan.published, plan.comparison
    assert source is not None and how is not None
    yield from wrapped(f"published: {source.source}, on {source.hardware}. {source.note}".strip(), width)
    given = [key for key in COLUMNS if any(getattr(arm, key) is not None for arm in source.arms)]
    if not given:
        return
    rows = []
    for arm, row in zip(plan.arms, source.arms, strict=True):
        figures = (getattr(row, key) for key in given)
        rows.append([comparison.label(arm), *("-" if figure is None else f"{figure:.10g}" for figure in figures)])
    yield from ("", *table(["arm", *(COLUMNS[key] for key in given)], rows))
    seconds = [_step_seconds(source, row, arm) for arm, row in zip(plan.arms, source.arms, strict=True)]
    known = [second for second in seconds if second is not None]
    if known and all(arm.settings["device"] == "cuda" for arm in plan.arms):
        which = "each arm" if len(known) == len(seconds) else f"the {len(known)} arms that have one"
        took = units.duration(how.total * sum(known))
        yield ""
        yield from wrapped(
            f"at the published speeds {how.total:,} steps of {which} take {took}, starting up not counted", width
        )


def _step_seconds(table: Published, row: PublishedArm, arm: Plan) -> float | None:
    """What a step of the arm's batch takes by what was published of it."""
    batch = arm.settings["batch"]
    if row.step_seconds is not None:
        return row.step_seconds
    if row.rate is not None:
        return float(batch / row.rate)
    if row.epoch_seconds is not None and table.epoch_samples:
        return float(batch / table.epoch_samples * row.epoch_seconds)
    return None
