"""Arms compared with their control, round by round."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.compare.intervals import ENOUGH, Ratio, mean_interval, ratio
from launcher.report.document import Column, numeric, text
from launcher.report.figures import Figures, figures
from launcher.report.metrics import Block
from launcher.report.read import Evidence
from launcher.report.sections import incomparable as incomparable_rates


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredArm:
    """One arm compared with the control; the control with itself."""

    evidence: Evidence
    figures: Figures
    rates: dict[int, float]
    """By round, in the unit of its figures."""
    ratio: Ratio | None
    """The ratio of its throughput to the control's; None for the control, where no round has both, and where they
    can't be compared."""
    gap: float | None
    """Relative difference of its mean loss from the control's over the last round that both have. For a script, which
    is started afresh in each round, the mean over the rounds."""
    gaps: tuple[float, float] | None
    """The 95% interval of its mean over the rounds, where there are enough."""
    incomparable: str = ""
    """Why its losses are not comparable with the control's; empty where they are."""
    unrelated: str = ""
    """Why its throughput has no ratio to the control's; empty where it can have one."""

    @property
    def label(self) -> str:
        return self.evidence.label

    @property
    def is_script(self) -> bool:
        """Whether it is a user's own script, which is started afresh for each block."""
        return self.evidence.plan.script is not None


def compare(evidence: Sequence[Evidence], steps: int) -> list[MeasuredArm]:
    """Each arm compared with the first, by their complete blocks of so many steps."""
    control = evidence[0]
    return [_arm(run, control, steps, number == 0) for number, run in enumerate(evidence)]


def _complete_blocks(evidence: Evidence, steps: int) -> dict[int, Block]:
    """Blocks with all their steps, and blocks of scripts that ended by themselves earlier."""
    blocks = evidence.metrics.blocks if evidence.metrics else {}
    return {number: block for number, block in blocks.items() if block.steps == steps or block.ended}


def _arm(evidence: Evidence, control: Evidence, steps: int, is_control: bool) -> MeasuredArm:
    blocks, others = _complete_blocks(evidence, steps), _complete_blocks(control, steps)
    rates = {number: block.rate for number, block in sorted(blocks.items()) if block.rate}
    theirs = {number: block.rate for number, block in others.items() if block.rate}
    unrelated = incomparable_rates([control, evidence])
    both = [number for number in rates if number in theirs and not unrelated]
    own = figures(evidence)
    # So that the ratio of two arms' throughputs is the mean of their ratios.
    overall = statistics.geometric_mean(rates.values()) if rates else None
    gaps = []
    incomparable = _incomparable(evidence, control)
    if not is_control and not incomparable:
        for number in sorted(set(blocks) & set(others)):
            ours, reference = blocks[number].loss, others[number].loss
            same = blocks[number].losses == others[number].losses  # a script may log them only at some steps
            if ours is not None and reference and same:
                gaps.append((ours - reference) / abs(reference))
    last = statistics.fmean(gaps) if gaps and evidence.plan.script else gaps[-1] if gaps else None
    return MeasuredArm(
        evidence=evidence,
        figures=dataclasses.replace(own, rate=overall if overall is not None else own.rate),
        rates=rates,
        ratio=ratio([rates[number] for number in both], [theirs[number] for number in both])
        if both and not is_control
        else None,
        gap=last,
        gaps=mean_interval(gaps) if len(gaps) >= ENOUGH else None,
        incomparable=incomparable,
        unrelated=unrelated,
    )


def _incomparable(evidence: Evidence, control: Evidence) -> str:
    """Why the same number of steps is not the same training; empty where it is."""
    ours, theirs = (run.plan.framework for run in (evidence, control))
    if ours and theirs and ours != theirs:
        return "another framework starts from other weights"
    batch, other = figures(evidence).batch, figures(control).batch
    if batch != other:
        return f"after the same steps it had seen other samples (batch {batch} against {other})"
    ours, theirs = (run.result.digests.get("data") for run in (evidence, control))
    if ours and theirs and ours != theirs:
        return "it was trained on other data (the digests differ)"
    return ""


def ratios(name: str, compared: Sequence[MeasuredArm]) -> Column:
    """A column of each arm's ratio; the control is once as fast as itself."""
    control, *others = compared
    cells = [numeric(1.0 if control.rates else None, "1.00")]
    cells += [numeric(arm.ratio.mean, arm.ratio.text(arm.ratio.mean)) if arm.ratio else text("") for arm in others]
    return Column(name, cells, number=True)
