"""All runs of a root as one table, from their small records: steps are read of runs without a result alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from launcher import units
from launcher.report.document import Cell, Column, Document, Prose, Section, numbers, numeric, of_columns, texts
from launcher.runs import run_ids, store
from launcher.runs.decode import decode
from launcher.runs.schema import Mode, PlanRecord, ResultRecord
from launcher.runs.states import Seen
from launcher.ui import details, summary, tables

_RESULT = (*summary.ROW_FIELDS, "effective", "loss", "nonfinite", "peak_memory_bytes")
_PLAN = (*summary.REQUEST_FIELDS, "settings", "arms")
REASON = 60
"""Letters of a state with its reason."""


def document(title: str, seen: Sequence[Seen], now: float, pages: Mapping[str, str]) -> Document:
    """The newest run first; `pages` are addresses of runs' own pages, by id."""
    if not seen:
        return Document(title=title, lead=("No runs.",), sections=())
    plans = [store.read(PlanRecord, store.plan_path(one.run.path), _PLAN) for one in seen]
    results = [
        summary.result_of(one.run.path, one.state, _RESULT) if one.state.finished else ResultRecord() for one in seen
    ]
    rates = [(result.throughput.mean, result.throughput.unit or "samples/s") for result in results]
    rate, written = units.rates(rates)
    names = [Cell(text=run_ids.words_of(one.run.id), value=one.run.id, link=pages.get(one.run.id, "")) for one in seen]
    columns = [
        Column("run", names),
        texts("started", [(one.state.started or "")[:16].replace("T", " ") for one in seen]),  # to the minute
        texts("state", [_state(one) for one in seen]),
        texts("mode", [_mode(plan, result) for plan, result in zip(plans, results, strict=True)]),
        texts("proof", [result.observed.verdict or "" for result in results]),
        Column("loss", [_loss(one, result) for one, result in zip(seen, results, strict=True)], number=True),
        numbers("accuracy", [result.eval.get("accuracy") for result in results], "{:.4f}".format),
        Column(rate, [numeric(of[0], text) for of, text in zip(rates, written, strict=True)], number=True),
        numbers("peak memory", [result.peak_memory_bytes for result in results], units.size),
        numbers("took", [summary.elapsed(one.state, now) for one in seen], units.duration),
        texts("request", [summary.request_of(plan) for plan in plans]),
    ]
    counts = Counter(one.state.name for one in seen)
    states = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    table = of_columns(columns, spare=("peak memory", "took", "started", "accuracy", "request"))
    return Document(
        title=title,
        lead=(f"{len(seen):,} run{'s' * (len(seen) > 1)}: {states}.",),
        sections=(Section(title="Runs", parts=(table,)), *_silent(seen)),
    )


def _silent(seen: Sequence[Seen]) -> Sequence[Section]:
    """Whose runs can't be read, and why."""
    why = dict.fromkeys(one.files.owner.why for one in seen if one.files.owner.why)
    return [Section(title="What could not be read", parts=tuple(Prose(text=reason) for reason in why))] if why else []


def _state(seen: Seen) -> str:
    reason = f": {seen.state.reason}" if seen.state.reason and seen.state.name != "running" else ""
    return tables.cut(f"{seen.state.name}{reason}", REASON)


def _mode(plan: PlanRecord, result: ResultRecord) -> str:
    if plan.arms:
        return f"{len(plan.arms)} arms"
    mode, _ = decode(Mode, result.effective)
    return f"{mode.amp or plan.settings.amp.level or ''} {mode.dtype or ''}".strip()


def _loss(seen: Seen, result: ResultRecord) -> Cell:
    if "loss.last" in result.nonfinite:
        return Cell(text="not finite")
    loss = result.loss.last if result != ResultRecord() else details.progress(seen.run).loss
    return numeric(loss, units.number(loss))
