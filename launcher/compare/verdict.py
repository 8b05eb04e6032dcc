"""The findings of a comparison as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher import units
from launcher.compare.arm_ratios import MeasuredArm
from launcher.compare.intervals import ENOUGH
from launcher.plan.model import Compare
from launcher.ui import summary


def verdict(compared: Sequence[MeasuredArm], how: Compare) -> str:
    """One sentence for the whole comparison."""
    control, *others = compared
    broken = _failed(control)
    if _unknown(control):
        return f"Nothing is concluded: the mode of the control, {control.label}, is unknown."
    known = [other for other in others if not _unknown(other)]
    if not known:
        return f"Nothing is concluded: the mode of {_listed([other.label for other in others])} is unknown."
    others = known
    measured = [(other, other.ratio) for other in others if other.ratio is not None and not (broken or _failed(other))]
    unrelated = [other.label for other in others if other.unrelated and not (broken or _failed(other))]
    if not measured and unrelated:
        speeds = "speeds" if len(unrelated) > 1 else "speed"
        return f"The {speeds} of {_listed(unrelated)} can't be compared with that of the control, {control.label}."
    if not measured:
        partly = " to its end" if any(other.ratio is not None for other in others) else ""
        return f"No arm except the control, {control.label}, was measured{partly}."
    if all(ratio.differs is None for _, ratio in measured):
        return f"Too few rounds to tell a difference from noise: an interval needs {ENOUGH}, and there were fewer."
    if not any(ratio.differs for _, ratio in measured):
        alike = _listed([control.label, *(arm.label for arm, ratio in measured if ratio.differs is not None)])
        if any(ratio.is_noisy for _, ratio in measured):
            return f"Too noisy to tell: no difference in speed beyond noise between {alike}."
        return f"No difference in speed beyond noise between {alike}."
    faster = [(ratio, arm) for arm, ratio in measured if ratio.differs and ratio.mean > 1]
    if not faster and len(measured) == 1:
        ((only, ratio),) = measured
        return f"{only.label} is slower: {ratio.text(ratio.mean)} times the {_rate(control)} of {control.label}."
    if not faster:
        return f"Nothing was faster than {control.label} beyond noise."
    held = [(ratio, arm) for ratio, arm in faster if _holds(arm, how)]
    if not held:
        return f"Nothing was faster than {control.label} beyond noise at no cost to the loss."
    gain, best = max(held, key=lambda arm: arm[0].mean)
    times = f"{gain.text(gain.mean)} times the {_rate(control)} of {control.label}"
    return f"{best.label} gains the most: {times}{_at_what_cost(best, how)}."


def remarks(compared: Sequence[MeasuredArm]) -> Iterator[str]:
    """What the figures of the arms don't say, each reason once."""
    control, *others = compared
    yield from _of_control(control)
    reasons: dict[str, list[str]] = {}
    for arm in others:
        if _failed(arm):
            continue  # its state is among the figures
        if _unknown(arm) or _unknown(control):
            whose = "its" if _unknown(arm) else "the control's"
            reasons.setdefault(f"nothing is concluded, since {whose} mode is unknown", []).append(arm.label)
            continue
        speed = _unmeasured(arm) if arm.ratio is None else ""
        losses = _not_finite(arm) or (arm.incomparable and f"losses are not compared: {arm.incomparable}")
        for reason in filter(None, (speed, losses)):
            reasons.setdefault(reason, []).append(arm.label)
    yield from (f"{_listed(labels)}: {reason}." for reason, labels in reasons.items())
    if sentence := _launch_bound(compared):
        yield sentence
    if control.is_script and any(arm.ratio or arm.gap is not None for arm in others):
        yield _of_scripts(compared)


def _of_control(control: MeasuredArm) -> Iterator[str]:
    if _failed(control):
        held = "Only its complete rounds" if control.rates else "Nothing"
        yield f"{_named(control)}, the control: {_how_it_failed(control)}. {held} can be compared with it."
    elif _not_finite(control):
        yield f"{_named(control)}, the control: {_not_finite(control)}. No loss can be compared with it."


def _launch_bound(compared: Sequence[MeasuredArm]) -> str:
    """Which arms left the GPU idle: their speeds are the CPU's, whatever the precision."""
    bound = [arm for arm in compared if summary.is_launch_bound(arm.evidence.result)]
    if not bound:
        return ""
    shares = [f"{arm.evidence.result.throughput.gpu_busy_share:.0%} of the time in {arm.label}" for arm in bound]
    remedy = summary.way_out(arm.evidence.result for arm in bound)
    return (
        f"The GPU computed {_listed(shares)}: these steps are launch-bound, and their speed says little of the "
        f"precision. Compare with {remedy}."
    )


def _of_scripts(compared: Sequence[MeasuredArm]) -> str:
    """What differs between blocks of a user's own script, and the cost of starting it for each block."""
    caveat = "Seed and order of the data are the script's own, and may differ from block to block"
    if len({arm.evidence.plan.script for arm in compared}) > 1:
        caveat += "; with other arguments a step may be other work"
    if any(arm.gap is not None for arm in compared):
        losses = ": a difference of the losses can be chance."
    elif all(arm.incomparable for arm in compared[1:]):
        losses = "."
    else:
        losses = ". Losses are not compared, since the script's are not known; job.log(step, loss=...) records them."
    took = [(arm.label, arm.evidence.result.wall_seconds) for arm in compared]
    durations = [f"{units.duration(seconds)} of {label}" for label, seconds in took if seconds is not None]
    cost = f" With its start, the last block took {', '.join(durations)}." if durations else ""
    return f"{caveat}{losses}{cost}"


def _rate(arm: MeasuredArm) -> str:
    return "step rate" if arm.figures.unit == "steps/s" else "throughput"


def _unknown(arm: MeasuredArm) -> bool:
    """Whether its measurement shows nothing: nobody knows in which mode it ran."""
    return arm.figures.verdict == "unknown" and not _failed(arm)


def _failed(arm: MeasuredArm) -> bool:
    return arm.evidence.state.name == "failed"


def shows_nothing(arm: MeasuredArm) -> str:
    """Why no speed follows from its measurement; empty where one does."""
    if _failed(arm):
        return arm.figures.outcome
    return "its mode is unknown" if _unknown(arm) else ""


def _holds(arm: MeasuredArm, how: Compare) -> bool:
    if _not_finite(arm):
        return False
    return arm.gap is None or arm.gap <= how.tolerance or is_noise(arm)


def is_noise(arm: MeasuredArm) -> bool:
    """Whether the interval of its loss gap over the rounds contains zero."""
    return arm.gaps is not None and arm.gaps[0] <= 0 <= arm.gaps[1]


def _at_what_cost(arm: MeasuredArm, how: Compare) -> str:
    if arm.gap is None:
        return "; their losses are not compared" if arm.incomparable else ""
    if abs(arm.gap) <= how.tolerance:
        return f", its loss within {how.tolerance:.1%}"
    return ", its loss no worse" if arm.gap < 0 else ", its loss no worse beyond noise"


def _how_it_failed(arm: MeasuredArm) -> str:
    after = arm.evidence.metrics.last_step if arm.evidence.metrics else 0
    when = f", after {after:,} step{'s' * (after > 1)}" if after else ""
    return f"{arm.evidence.state.reason}{when}"


def _named(arm: MeasuredArm) -> str:
    framework = arm.evidence.plan.framework
    return f"{arm.label} ({arm.figures.mechanism} in {framework})" if arm.figures.mechanism else arm.label


def _unmeasured(arm: MeasuredArm) -> str:
    if arm.unrelated:
        return f"its speed and the control's can't be compared: they are of {arm.unrelated}"
    return "no round was measured with both it and the control"


def _not_finite(arm: MeasuredArm) -> str:
    rows = arm.evidence.metrics
    return f"its loss is not finite from step {rows.nonfinite_at} on" if rows and rows.nonfinite_at is not None else ""


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
