"""A comparison as a document: gain and cost of each arm against the control, with confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from amp_launcher.typed import SettingsError, build
from launcher import units
from launcher.called import as_started
from launcher.compare.arm_ratios import MeasuredArm, compare, ratios
from launcher.compare.intervals import ENOUGH
from launcher.compare.published import measured
from launcher.compare.verdict import is_noise, remarks, shows_nothing, verdict
from launcher.plan.model import Compare, Published
from launcher.report import plain, read, sections
from launcher.report.document import (
    Bar,
    Bars,
    Cell,
    Column,
    Document,
    Part,
    Prose,
    Section,
    Table,
    numbers,
    numeric,
    of_columns,
    text,
    texts,
)
from launcher.runs import arms, run_ids, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import State
from launcher.ui import ended_runs, summary, tables


def document(title: str, folder: Path, state: State, plan: PlanRecord) -> Document:
    """The report of the comparison in this folder."""
    how = settings_of(plan)
    evidence = read.of_arms(folder, plan, state, read=True, block=how.steps)
    compared = compare(evidence, how.steps)
    remarked = [Prose(text=sentence) for sentence in remarks(compared)] if compared else []
    parts: tuple[Part, ...] = (*ratio_chart(compared, how), table(compared, how), *remarked)
    rest = sections.of_runs(title, evidence)
    kept = [
        dataclasses.replace(section, brief=section.title == sections.UNREAD)
        for section in rest.sections
        if section.title != "Results"
    ]
    extra = [*_published(plan, compared), _measured(compared, how, state)]
    return Document(
        title=title,
        lead=(verdict(compared, how),) if compared else (),
        sections=(Section(title="Comparison", parts=parts), *extra, *kept),
    )


def last_words(folder: Path, state: State, now: float, width: int = 0) -> list[str]:
    """The lines that a terminal shows for a comparison that has ended."""
    plan = store.read(PlanRecord, folder / "plan.json")
    lines = list(plain.lines(document(folder.name, folder, state, plan), width))[1:]
    rows = [(run_ids.words_of(folder.name), summary.headline(state, now)), ("folder", summary.place_of(folder))]
    ended = tables.pairs(rows, width)
    if state.name in ended_runs.ENDED_EARLY:
        ended.append(as_started(f"continue with: python -m launcher resume {folder.name}"))
    page = as_started(f"python -m launcher report {run_ids.words_of(folder.name)} --html FILE")
    return [*ended, "", *lines, *_failures(folder, state, plan), "", f"with charts: {page}"]


def _failures(folder: Path, comparison: State, plan: PlanRecord) -> Iterator[str]:
    """The last log lines of each arm that failed, unless they only repeat its reason."""
    for arm in arms.of(folder, plan):
        state = arms.state(arm.run, comparison)
        if state.name == "failed" and state.reason != arms.OUT_OF_MEMORY:
            lines = ended_runs.failure(arm.run.folder, state)
            if any(state.reason not in line for line in lines[1:]):
                yield from ("", *lines)


def settings_of(plan: PlanRecord) -> Compare:
    try:
        return build(Compare, plan.comparison)
    except SettingsError:  # damaged
        return Compare()


def table(compared: Sequence[MeasuredArm], how: Compare) -> Table:
    """One row an arm."""
    intervals = Column("95% interval", list(map(_interval_cell, compared)), number=True)
    gaps = Column("loss gap", [_gap_cell(arm, how) for arm in compared], number=True)
    figures = [arm.figures for arm in compared]
    columns = [
        texts("arm", [arm.label for arm in compared]),
        *sections.figure_columns(figures, after_rate=[ratios("ratio", compared), intervals], after_loss=[gaps]),
    ]
    return of_columns(columns, spare=("skipped", "in half", "batch", "peak memory", "loss"))


def _interval_cell(arm: MeasuredArm) -> Cell:
    if arm.ratio is None or arm.ratio.low is None or arm.ratio.high is None:
        return text("")
    return Cell(text=f"{arm.ratio.text(arm.ratio.low)} to {arm.ratio.text(arm.ratio.high)}", value=arm.ratio.low)


def _gap_cell(arm: MeasuredArm, how: Compare) -> Cell:
    noise = ", noise" if arm.gap is not None and abs(arm.gap) > how.tolerance and is_noise(arm) else ""
    return numeric(arm.gap, "" if arm.gap is None else f"{arm.gap:+.2%}{noise}")


def ratio_chart(compared: Sequence[MeasuredArm], how: Compare) -> Iterator[Bars]:
    """Each arm's throughput against the control's, with what would help where it can't be told from it."""
    if not any(arm.ratio for arm in compared) or shows_nothing(compared[0]):
        return
    control, *others = compared
    written = f"the control, {units.number(control.figures.rate)} {control.figures.unit}"
    drawn = [Bar(label=control.label, value=1.0, text=written, colour=control.evidence.colour)]
    for arm in others:
        ratio = arm.ratio
        if ratio is None or shows_nothing(arm):
            drawn.append(Bar(label=arm.label, value=None, text=shows_nothing(arm) or arm.figures.outcome, colour=None))
            continue
        words, interval = f"{ratio.text(ratio.mean)} times", None
        if ratio.low is not None and ratio.high is not None:
            interval = ratio.low, ratio.high
            words += f" ({ratio.text(ratio.low)} to {ratio.text(ratio.high)})"
            words += ", too noisy to tell" if ratio.is_noisy else "" if ratio.differs else ", no difference"
        else:
            words += f" over {ratio.pairs} round{'s' * (ratio.pairs > 1)}, too few to tell"
        colour = arm.evidence.colour if ratio.differs else None
        drawn.append(Bar(label=arm.label, value=ratio.mean, text=words, colour=colour, interval=interval))
    found = [arm.ratio for arm in others if arm.ratio and not shows_nothing(arm)]
    notes = []
    if any(ratio.low is not None for ratio in found):
        notes.append("In parentheses: 95% intervals.")
    if any(ratio.is_noisy for ratio in found):
        notes.append(
            f"Where it is too noisy to tell, compare.rounds={4 * how.rounds} would halve the interval; a machine that "
            "does nothing else helps too."
        )
    if any(ratio.low is None for ratio in found):
        notes.append(f"An interval needs {ENOUGH} rounds: compare.rounds={ENOUGH}.")
    title = f"Throughput over that of {control.label}"
    yield Bars(title=title, bars=tuple(drawn), note=" ".join(notes), mark=1.0)


def _measured(compared: Sequence[MeasuredArm], how: Compare, state: State) -> Section:
    """The method of measurement, and the throughput of every round."""
    rounds_of = f"{how.rounds} round{'s' * (how.rounds != 1)} of one block of {how.steps} steps for each arm"
    scripts = any(arm.is_script for arm in compared)
    method = (
        f"{rounds_of}, every other round backwards, {how.cool_down} s of rest between; the first steps of a block and "
        "those that were observed are not timed. "
        "Throughput is the geometric mean over the rounds. "
        f"{_of_scripts(compared, how) if scripts else _SAME}"
    )
    rounds = sorted({number for arm in compared for number in arm.rates})
    columns = [numbers("round", [number + 1 for number in rounds])]
    used = {arm.figures.unit for arm in compared}
    for arm in compared:
        rates = [arm.rates.get(number) for number in rounds]
        name = arm.label if len(used) == 1 else f"{arm.label}, {arm.figures.unit}"
        columns.append(numbers(name, rates, units.number))
    rounds_in = f" The table is in {used.pop()}." if rounds and len(used) == 1 else ""
    parts: list[Part] = [Prose(text=f"{method}{rounds_in}")]
    if state.attempt > 1:
        parts.append(Prose(text=f"It was interrupted and resumed: its blocks are from {state.attempt} starts."))
    if rounds:
        parts.append(of_columns(columns))
    return Section(title="Rounds", parts=tuple(parts), brief=False)


_SAME = "Arms begin with the same weights, see the data in the same order and run the same code."


def _of_scripts(compared: Sequence[MeasuredArm], how: Compare) -> str:
    """How blocks of a script are measured."""
    lines = ["Each block starts the script afresh, in a folder of its own, and ends it after its steps."]
    for arm in compared:
        blocks = arm.evidence.metrics.blocks.values() if arm.evidence.metrics else ()
        if early := [block.steps for block in blocks if block.ended and block.steps < how.steps]:
            lines.append(
                f"Of {arm.label}, {len(early)} ended by themselves before that, after {min(early)} steps or more."
            )
    return " ".join(lines)


def _published(plan: PlanRecord, compared: Sequence[MeasuredArm]) -> Iterator[Section]:
    if not plan.published:
        return
    try:
        source = build(Published, plan.published)
    except SettingsError:  # damaged
        return
    yield measured(source, compared)
