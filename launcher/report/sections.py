"""Runs as a document: each section a function of the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from launcher import units
from launcher.report import chosen
from launcher.report.differences import code_difference, differing
from launcher.report.document import (
    Bar,
    Bars,
    Cell,
    Code,
    Column,
    Document,
    Part,
    Prose,
    Section,
    Table,
    numbers,
    numeric,
    of_columns,
    shared,
    text,
    texts,
)
from launcher.report.figures import Figures, figures
from launcher.report.read import Evidence
from launcher.report.tracks import charts
from launcher.runs.schema import PlanRecord
from launcher.ui import summary

UNREAD = "What could not be read"
BARS = 24
"""Bars in one chart; the table has all runs."""


def of_runs(title: str, evidence: Sequence[Evidence]) -> Document:
    """The report of some runs; charts where their steps were read."""
    measured = [figures(run) for run in evidence]
    ratios = numbers("ratio", _ratios(evidence, measured), units.ratio)
    sections = [
        Section(
            title="Results",
            parts=(
                results(evidence, measured, ratios),
                *_unequal(evidence, measured),
                *bars(evidence, measured, ratios),
            ),
        ),
        Section(title="Requested and observed", parts=tuple(shared(asked_and_observed(evidence)))),
        Section(title="Charts", parts=tuple(charts(evidence)), brief=False),
        *differences(evidence),
        *problems(evidence),
        Section(title="Where it comes from", parts=tuple(provenance(evidence)), brief=False),
    ]
    return Document(
        title=title, lead=tuple(_lead(evidence)), sections=tuple(section for section in sections if section.parts)
    )


def _lead(evidence: Sequence[Evidence]) -> Iterator[str]:
    read, count = sum(run.metrics is not None for run in evidence), len(evidence)
    if count <= chosen.DISTINCT:
        return
    _, by = chosen.best_first([run.result for run in evidence])
    drawn = f" The steps of {read} of them were read." if read < count else ""
    coloured = f"{chosen.COLOURED} with the best {by}" if by else f"first {chosen.COLOURED}"
    yield f"{count} runs.{drawn} In the charts the {coloured} have colours."


def results(evidence: Sequence[Evidence], measured: Sequence[Figures], ratios: Column) -> Table:
    """One row a run."""
    columns = [
        texts("run", [run.label for run in evidence]),
        texts("mode", [run.mode for run in measured]),
        *figure_columns(measured, after_rate=[ratios, *_published(evidence)]),
    ]
    return of_columns(columns, spare=("skipped", "in half", "peak memory", "ratio", "batch"))


def _published(evidence: Sequence[Evidence]) -> Iterator[Column]:
    """What was published of these scripts, and its ratio to that of the first."""
    rates = [run.plan.settings.train.published for run in evidence]
    yield numbers("published samples/s", rates, "{:.10g}".format)
    if len(rates) > 1 and (first := rates[0]):
        yield numbers("published ratio", [rate and rate / first for rate in rates], units.ratio)


def figure_columns(
    measured: Sequence[Figures], after_rate: Sequence[Column] = (), after_loss: Sequence[Column] = ()
) -> list[Column]:
    """The columns of runs' figures, with others among them."""
    rate, rates = units.rates([(run.rate, run.unit) for run in measured])
    losses = [
        Cell(text="not finite") if run.nonfinite else numeric(run.loss, units.number(run.loss)) for run in measured
    ]
    return [
        numbers("batch", [run.batch for run in measured]),
        Column(rate, [numeric(run.rate, cell) for run, cell in zip(measured, rates, strict=True)], number=True),
        *after_rate,
        numbers("peak memory", [run.memory for run in measured], units.size),
        Column("loss", losses, number=True),
        *after_loss,
        numbers("accuracy", [run.accuracy for run in measured], "{:.4f}".format),
        numbers("skipped", [run.skipped for run in measured]),
        numbers("in half", [run.half_share for run in measured], "{:.1%}".format),
        texts("proof", [run.verdict for run in measured]),
        texts("state", [run.outcome for run in measured]),
    ]


def _ratios(evidence: Sequence[Evidence], measured: Sequence[Figures]) -> list[float | None]:
    """Throughput relative to the first run, where the runs are comparable."""
    first = measured[0].rate if len(measured) > 1 and not incomparable(evidence) else None
    return [run.rate / first if first and run.rate is not None else None for run in measured]


def incomparable(evidence: Sequence[Evidence]) -> str:
    """Why the throughputs of these runs have no ratio; empty where they have one."""
    rates = [run.result.throughput for run in evidence if run.result.throughput.mean is not None]
    for what, values in (
        ("recipes", [run.plan.recipe for run in evidence]),
        ("data sets", [run.plan.settings.data.name for run in evidence]),
        ("units", [rate.unit for rate in rates]),
        ("counts", [rate.counted for rate in rates if rate.unit == "steps/s"]),
    ):
        names = sorted({str(value) for value in values if value is not None})
        if len(names) > 1:
            return f"different {what} ({', '.join(names)})"
    return ""


def _unequal(evidence: Sequence[Evidence], measured: Sequence[Figures]) -> Iterator[Prose]:
    if len([run for run in measured if run.rate is not None]) > 1 and (why := incomparable(evidence)):
        yield Prose(text=f"No ratios: these runs are of {why}.")


def bars(evidence: Sequence[Evidence], measured: Sequence[Figures], ratios: Column) -> Iterator[Bars]:
    """Throughput, with the ratios that the table has."""
    if len(measured) < 2 or len({own.unit for own in measured if own.rate is not None}) != 1:
        return
    many = len(measured) > BARS
    note = f"the {BARS} highest of {len(measured)}" if many else ""

    def rate(own: Figures, ratio: Cell) -> str:
        more = f" ({ratio.text}x)" if ratio.value is not None else ""
        return f"{units.number(own.rate)} {own.unit}{more}" if own.rate is not None else own.outcome

    drawn = [
        Bar(label=run.label, value=own.rate, text=rate(own, ratio), colour=run.colour)
        for run, own, ratio in zip(evidence, measured, ratios.cells, strict=True)
    ]
    shown = sorted(drawn, key=lambda bar: -(bar.value or 0.0))[:BARS] if many else drawn
    yield Bars(title="Throughput", bars=tuple(shown), note=note)


def asked_and_observed(evidence: Sequence[Evidence]) -> Table:
    """The mode requested of each run, the mode observed, and the verdict."""
    rows = []
    for run in evidence:
        asked, became, seen = run.result.requested, run.result.effective, run.result.observed
        settled = ", ".join(
            f"{key} {show(asked.get(key))} -> {show(became[key])}"
            for key in became
            if key in asked and asked[key] != became[key]
        )
        parameters = ", ".join(f"{count:,} {name}" for name, count in seen.param_dtypes.items())
        observed = ", ".join(
            part
            for part in (
                f"{seen.half_flop_share:.1%} in half" if seen.half_flop_share is not None else "",
                f"parameters {parameters}" if parameters else "",
                f"TF32 {show(seen.tf32)}" if seen.tf32 is not None else "",
                f"XLA clusters {seen.xla_clusters}" if seen.xla_clusters is not None else "",
                f"on {seen.device}" if seen.device else "",
            )
            if part
        )
        mechanism = run.result.mechanism or run.plan.mechanism or ""
        cells = (run.label, mechanism, _requested(run.plan), settled, observed)
        verdict = seen.verdict or ("nothing to prove" if seen.why else "nothing was observed")
        rows.append(tuple(map(text, (*cells, verdict, seen.why or ""))))
    return Table(header=("run", "mechanism", "requested", "resolved", "observed", "verdict", "why"), rows=tuple(rows))


def _requested(plan: PlanRecord) -> str:
    """The words of the job, and the line of a user's script."""
    script = plan.script
    line = [script.file.removeprefix("script/"), *script.arguments] if script and script.file else []
    return " ".join((*plan.words, *([shlex.join(line)] if line else [])))


def show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "auto" if value is None else str(value)


def differences(evidence: Sequence[Evidence]) -> Iterator[Section]:
    """What is not the same in these runs, and, of two, the files in which their code differs."""
    if (table := differing(evidence)) is not None:
        sentence = code_difference(*evidence) if len(evidence) == 2 else ""
        yield Section(title="What differs", parts=(table, *([Prose(text=sentence)] if sentence else [])))


def problems(evidence: Sequence[Evidence]) -> Iterator[Section]:
    """The problems met in reading the folders."""
    paragraphs = tuple(Prose(text=f"{run.label}: {problem}") for run in evidence for problem in run.problems)
    if paragraphs:
        yield Section(title=UNREAD, parts=paragraphs)


def provenance(evidence: Sequence[Evidence]) -> Iterator[Part]:
    """Where each run comes from, and the commands that repeat them."""
    rows = []
    commands: dict[str, None] = {}
    for run in evidence:
        result, code = run.result, run.provenance.code
        own = run.provenance.script if run.plan.script else code
        container = run.plan.container
        cells = (
            run.label,
            run.run.id,
            run.provenance.created,
            f"{own.commit or ''}{' with changes' if own.dirty else ''}",
            (code.digest or "")[:12],
            (container and container.image) or "none",
            " ".join(f"{name} {version}" for name, version in result.versions.items() if version) or run.plan.framework,
            summary.device_of(result),
            run.plan.host,
        )
        rows.append(tuple(text(cell or "") for cell in cells))
        if run.provenance.command:
            commands[shlex.join(run.provenance.command)] = None
    header = ("run", "id", "created", "commit", "code", "image", "versions", "hardware", "host")
    yield from shared(Table(header=header, rows=tuple(rows)))
    if commands:
        yield Prose(text="To repeat it:")
        yield Code(text="\n".join(commands))
