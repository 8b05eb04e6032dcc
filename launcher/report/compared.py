"""A comparison as a document: what each arm gains and costs beside the control, and how sure that is."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import human, run_ids, runs, summary, tables
from launcher.comparison import Compare, Published, PublishedArm
from launcher.report import plain, read, sections
from launcher.report.document import Bar, Bars, Cell, Document, Part, Prose, Section, Table, numeric, text
from launcher.report.figures import Figures, figures
from launcher.report.intervals import ENOUGH, Ratio, mean_interval, ratio
from launcher.report.metrics import Block
from launcher.report.read import Evidence, inner
from launcher.states import State
from recipes.typed import SettingsError, build


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One arm beside the control, which is an arm beside itself."""

    evidence: Evidence
    figures: Figures
    mechanism: str
    rates: dict[int, float]
    """Samples a second by round."""
    ratio: Ratio | None
    """Of its throughput to the control's; None where no round has both, and of the control."""
    gap: float | None
    """Relative difference of its mean loss from the control's over the last round that both have."""
    gaps: tuple[float, float] | None
    """The 95% interval of its mean over the rounds, where there are enough."""

    @property
    def label(self) -> str:
        return self.evidence.label


def is_comparison(plan: dict[str, Any]) -> bool:
    return bool(plan.get("arms")) and bool(plan.get("comparison"))


def document(title: str, folder: Path, whole: State, plan: dict[str, Any], came_from: dict[str, Any]) -> Document:
    """The report of the comparison in this folder."""
    how = settings_of(plan)
    evidence = read.of_arms(folder, plan, whole, came_from, read=True, block=how.steps)
    compared = compare(evidence, how.steps)
    found = [each.figures for each in compared]
    parts: tuple[Part, ...] = (table(compared), *bars(compared))
    rest = sections.of_runs(title, evidence)
    kept = [dataclasses.replace(each, brief=False) for each in rest.sections if each.title != "Results"]
    extra = [*_published(plan, compared), _measured(compared, how, whole)]
    return Document(
        title=title,
        lead=tuple(verdict(compared, how)) if found else (),
        sections=(Section(title="Comparison", parts=parts), *extra, *kept),
    )


def last_words(folder: Path, whole: State, now: float) -> list[str]:
    """What a terminal says of a comparison that has ended."""
    plan, came_from = (runs.read_if_whole(folder / name) for name in ("plan.json", "provenance.json"))
    lines = list(plain.lines(document(folder.name, folder, whole, plan, came_from)))[1:]
    rows = [(run_ids.words_of(folder.name), summary.headline(whole, now)), ("folder", summary.place_of(folder))]
    ended = tables.pairs(rows)
    if whole.name in ("stopped", "cancelled", "lost"):
        ended.append(f"go on with it: python -m launcher resume {folder.name}")
    page = f"python -m launcher report {run_ids.words_of(folder.name)} --html FILE"
    return [*ended, "", *lines, "", f"with charts: {page}"]


def settings_of(plan: dict[str, Any]) -> Compare:
    try:
        return build(Compare, inner(plan, "comparison"))
    except SettingsError:  # of another version
        return Compare()


def compare(evidence: Sequence[Evidence], steps: int) -> list[Arm]:
    """Each arm beside the first, by its whole blocks of so many steps."""
    control = evidence[0]
    return [_arm(each, control, steps, number == 0) for number, each in enumerate(evidence)]


def _whole(evidence: Evidence, steps: int) -> dict[int, Block]:
    found = evidence.metrics.blocks if evidence.metrics else {}
    return {number: block for number, block in found.items() if block.steps == steps}


def _arm(evidence: Evidence, control: Evidence, steps: int, is_control: bool) -> Arm:
    blocks, others = _whole(evidence, steps), _whole(control, steps)
    rates = {number: block.rate for number, block in sorted(blocks.items()) if block.rate}
    theirs = {number: block.rate for number, block in others.items() if block.rate}
    both = [number for number in rates if number in theirs]
    found = figures(evidence)
    # So that the ratio of two arms' throughputs is the mean of their ratios.
    overall = statistics.geometric_mean(rates.values()) if rates else None
    gaps = []
    if not is_control and evidence.plan.get("framework") == control.plan.get("framework"):
        for number in sorted(set(blocks) & set(others)):
            ours, reference = blocks[number].loss, others[number].loss
            if ours is not None and reference:
                gaps.append((ours - reference) / abs(reference))
    return Arm(
        evidence=evidence,
        figures=dataclasses.replace(found, rate=overall if overall is not None else found.rate),
        mechanism=found.mechanism,
        rates=rates,
        ratio=ratio([rates[each] for each in both], [theirs[each] for each in both])
        if both and not is_control
        else None,
        gap=gaps[-1] if gaps else None,
        gaps=mean_interval(gaps) if len(gaps) >= ENOUGH else None,
    )


# In words


def verdict(compared: Sequence[Arm], how: Compare) -> Iterator[str]:
    """What was found: first all in one sentence, then one for each arm."""
    control, *others = compared
    yield _in_all(control, others, how)
    if control.evidence.state.name == "failed":
        yield f"{_named(control)}, the control: {control.evidence.state.reason}. Nothing can be held against it."
    for each in others:
        yield _of_arm(each, control, how)
    digests = {inner(each.evidence.result, "digests").get("data") for each in compared if each.evidence.result}
    if len(digests) > 1:
        yield "The arms were trained on different data (their digests differ): their losses can't be compared."


def _in_all(control: Arm, others: Sequence[Arm], how: Compare) -> str:
    measured = [(each, each.ratio) for each in others if each.ratio is not None]
    if not measured:
        return f"Nothing was measured beside the control, {control.label}."
    if all(ratio.differs is None for _, ratio in measured):
        return f"Too few rounds to tell a difference from noise: an interval needs {ENOUGH}, and there were fewer."
    if not any(ratio.differs for _, ratio in measured):
        return f"No difference in speed beyond noise between {_listed([e.label for e in (control, *others)])}."
    faster = [(r.mean, e) for e, r in measured if r.differs and r.mean > 1 and _holds(e, how)]
    if not faster:
        return f"Nothing was faster than {control.label} beyond noise at no cost to the loss."
    gain, best = max(faster, key=lambda each: each[0])
    return f"{best.label} gains the most: {gain:.2f} times the throughput of {control.label}{_at_what_cost(best, how)}."


def _holds(arm: Arm, how: Compare) -> bool:
    return arm.gap is None or arm.gap <= how.tolerance or _is_noise(arm)


def _is_noise(arm: Arm) -> bool:
    """Whether over the rounds its loss is as often below the control's as above, as far as they tell."""
    return arm.gaps is not None and arm.gaps[0] <= 0 <= arm.gaps[1]


def _at_what_cost(arm: Arm, how: Compare) -> str:
    if arm.gap is None:
        return ""
    return f", its loss within {how.tolerance:.1%}" if arm.gap <= how.tolerance else ", its loss no worse beyond noise"


def _of_arm(arm: Arm, control: Arm, how: Compare) -> str:
    state = arm.evidence.state
    if state.name == "failed":
        after = arm.evidence.metrics.last_step if arm.evidence.metrics else 0
        return f"{_named(arm)}: {state.reason}{f' after {after} steps' if after else ''}."
    parts = [_speed(arm, control)]
    if arm.figures.memory and control.figures.memory:
        parts.append(f"peak memory {arm.figures.memory / control.figures.memory:.2f} times")
    parts.append(_loss(arm, control, how))
    mine, theirs = arm.figures.accuracy, control.figures.accuracy
    if mine is not None and theirs is not None:
        parts.append(f"accuracy {mine:.4f} against {theirs:.4f}")
    if arm.figures.skipped:
        parts.append(f"{arm.figures.skipped} steps skipped")
    return f"{_named(arm)}: {'; '.join(part for part in parts if part)}."


def _named(arm: Arm) -> str:
    framework = arm.evidence.plan.get("framework")
    return f"{arm.label} ({arm.mechanism} in {framework})" if arm.mechanism else arm.label


def _speed(arm: Arm, control: Arm) -> str:
    found = arm.ratio
    if found is None:
        return "no round was measured beside the control"
    if found.low is None or found.high is None:
        rounds = f"{found.pairs} round{'s' * (found.pairs > 1)}"
        return f"{found.mean:.2f} times the throughput over {rounds}, too few for an interval"
    interval = f"95% interval {found.low:.2f} to {found.high:.2f}, {found.pairs} rounds"
    if not found.differs:
        return f"no difference in speed from {control.label} beyond noise: {found.mean:.2f} times ({interval})"
    return f"{found.mean:.2f} times the throughput of {control.label} ({interval})"


def _loss(arm: Arm, control: Arm, how: Compare) -> str:
    if arm.evidence.plan.get("framework") != control.evidence.plan.get("framework"):
        return "losses are not compared: another framework begins with other weights"
    if arm.evidence.metrics and arm.evidence.metrics.nonfinite_at is not None:
        return f"its loss is not finite from step {arm.evidence.metrics.nonfinite_at} on"
    if arm.gap is None:
        return ""
    batches = "" if arm.figures.batch == control.figures.batch else ", which had other batches,"
    if abs(arm.gap) <= how.tolerance:
        return f"loss at the same steps{batches} within {how.tolerance:.1%} ({arm.gap:+.2%})"
    said = f"loss at the same steps{batches} {arm.gap:+.1%}"
    if _is_noise(arm) and arm.gaps is not None:
        low, high = arm.gaps
        return f"{said} in the last round, which is noise: over all rounds {low:+.1%} to {high:+.1%}"
    return f"{said}, beyond the tolerance of {how.tolerance:.1%}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# In tables


def table(compared: Sequence[Arm]) -> Table:
    """One row an arm."""
    columns: list[tuple[str, list[Cell], bool]] = [
        ("arm", [text(each.label) for each in compared], False),
        ("mechanism", [text(each.mechanism) for each in compared], False),
        ("batch", [numeric(each.figures.batch, str(each.figures.batch)) for each in compared], True),
        ("samples/s", [numeric(each.figures.rate, human.number(each.figures.rate)) for each in compared], True),
        ("ratio", [_ratio_cell(each, control=number == 0) for number, each in enumerate(compared)], True),
        ("95% interval", [_interval_cell(each) for each in compared], True),
        ("peak memory", [numeric(each.figures.memory, human.size(each.figures.memory)) for each in compared], True),
        ("loss", [numeric(each.figures.loss, human.number(each.figures.loss)) for each in compared], True),
        ("loss gap", [numeric(each.gap, f"{each.gap or 0:+.2%}") for each in compared], True),
        ("accuracy", [numeric(each.figures.accuracy, f"{each.figures.accuracy or 0:.4f}") for each in compared], True),
        ("skipped", [numeric(each.figures.skipped, str(each.figures.skipped)) for each in compared], True),
        ("in half", [_half_cell(each) for each in compared], True),
        ("proof", [text(each.figures.verdict) for each in compared], False),
        ("state", [text(each.figures.outcome) for each in compared], False),
    ]
    return sections.columns(columns)


def _ratio_cell(arm: Arm, control: bool) -> Cell:
    mean = 1.0 if control and arm.rates else (arm.ratio.mean if arm.ratio else None)
    return numeric(mean, f"{mean or 0:.2f}")


def _interval_cell(arm: Arm) -> Cell:
    if arm.ratio is None or arm.ratio.low is None or arm.ratio.high is None:
        return Cell(text="-")
    return Cell(text=f"{arm.ratio.low:.2f} to {arm.ratio.high:.2f}", value=arm.ratio.low)


def _half_cell(arm: Arm) -> Cell:
    return numeric(arm.figures.half_share, sections.percent(arm.figures.half_share))


def bars(compared: Sequence[Arm]) -> Iterator[Bars]:
    return sections.bars([each.evidence for each in compared], [each.figures for each in compared])


def _measured(compared: Sequence[Arm], how: Compare, whole: State) -> Section:
    """How it was measured, and every round of it."""
    said = (
        f"{how.rounds} rounds of one block of {how.steps} steps for each arm, every other round backwards, "
        f"{how.cool_down} s of rest between; the first steps of a block and those that were observed are not timed. "
        "Throughput is the geometric mean over the rounds. "
        "Arms begin with the same weights, see the data in the same order and run the same code."
    )
    rounds = sorted({number for each in compared for number in each.rates})
    rows = tuple(
        (
            numeric(number + 1, str(number + 1)),
            *(numeric(each.rates.get(number), human.number(each.rates.get(number))) for each in compared),
        )
        for number in rounds
    )
    header = ("round", *(f"{each.label}, samples/s" for each in compared))
    parts: list[Part] = [Prose(text=said)]
    if whole.attempt > 1:
        parts.append(Prose(text=f"It was interrupted and went on: its blocks are from {whole.attempt} starts."))
    if rows:
        parts.append(Table(header=header, rows=rows, numbers=frozenset(range(len(header)))))
    return Section(title="Rounds", parts=tuple(parts), brief=False)


# Beside what was published


def _published(plan: dict[str, Any], compared: Sequence[Arm]) -> Iterator[Section]:
    if not plan.get("published"):
        return
    try:
        said = build(Published, inner(plan, "published"))
    except SettingsError:  # of another version
        return
    yield published(said, compared)


def published(said: Published, compared: Sequence[Arm]) -> Section:
    """The published table beside ours. Hardware differs, so that only ratios are held against each other."""
    pairs = list(zip(said.arms, compared, strict=False))
    first = said.arms[0] if said.arms else PublishedArm()
    hardware = next((_hardware(each.evidence) for each in compared if each.evidence.result), "unknown hardware")
    columns: list[tuple[str, list[Cell], bool]] = [
        ("arm", [text(arm.label) for _, arm in pairs], False),
        ("published ratio", [_rounded(_gain(each, first, arm, compared[0])) for each, arm in pairs], True),
        ("our ratio", [_ratio_cell(arm, control=number == 0) for number, (_, arm) in enumerate(pairs)], True),
        ("published samples/s", [_rounded(each.rate) for each, _ in pairs], True),
        ("published s/step", [_rounded(each.step_seconds) for each, _ in pairs], True),
        ("published s/epoch", [_rounded(each.epoch_seconds) for each, _ in pairs], True),
        ("our samples/s", [numeric(arm.figures.rate, human.number(arm.figures.rate)) for _, arm in pairs], True),
        ("published GB", [_rounded(each.memory_gb) for each, _ in pairs], True),
        ("our memory", [numeric(arm.figures.memory, human.size(arm.figures.memory)) for _, arm in pairs], True),
        ("published loss", [_rounded(each.loss, 7) for each, _ in pairs], True),
        (
            "our loss",
            [_rounded(arm.figures.loss, 7) if any(e.loss for e, _ in pairs) else Cell(text="-") for _, arm in pairs],
            True,
        ),
        ("published accuracy", [_rounded(each.accuracy) for each, _ in pairs], True),
        ("our accuracy", [_rounded(arm.figures.accuracy) for _, arm in pairs], True),
    ]
    bars = tuple(
        bar
        for number, (each, arm) in enumerate(pairs)
        for bar in (
            _ratio_bar(arm.label, "published", _gain(each, first, arm, compared[0]), number),
            _ratio_bar(arm.label, "measured", _ratio_cell(arm, control=number == 0).value, number),
        )
    )
    return Section(
        title="Beside what was published",
        parts=(
            Prose(text=f"Published: {said.source}, on {said.hardware}. Here: {hardware}. {said.note}".strip()),
            sections.columns(columns),
            Bars(title="Throughput, as a multiple of the first arm's", bars=bars),
        ),
    )


def _gain(said: PublishedArm, first: PublishedArm, arm: Arm, control: Arm) -> float | None:
    """The published throughput over that of the first arm; of times for steps, by their batches."""
    if said.rate and first.rate:
        return said.rate / first.rate
    if said.epoch_seconds and first.epoch_seconds:
        return first.epoch_seconds / said.epoch_seconds
    if said.step_seconds and first.step_seconds and arm.figures.batch and control.figures.batch:
        return first.step_seconds / said.step_seconds * arm.figures.batch / control.figures.batch
    return None


def _rounded(value: float | None, digits: int = 4) -> Cell:
    return numeric(value, human.number(value, digits))


def _ratio_bar(label: str, how: str, value: float | str | None, colour: int) -> Bar:
    known = value if isinstance(value, (int, float)) else None
    return Bar(
        label=f"{label}, {how}", value=known, text=f"not {how}" if known is None else f"{known:.2f}x", colour=colour
    )


def _hardware(evidence: Evidence) -> str:
    found = inner(evidence.result, "hardware")
    return str(found.get("gpu") or found.get("cpu") or "unknown hardware")
