"""A sweep as a table: what was swept, and what its runs measured and logged."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher.shown import show
from launcher import units
from launcher.called import as_started
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import log_tail, run_ids, store
from launcher.runs.schema import PlanRecord, ResultRecord, SearchRecord
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ui import details, ended_runs, summary, tables
from launcher.ui.tables import Column

RATE = "rate"
"""The measure that is the throughput."""
FAILED = 4
"""The most failures that are explained below the table."""
_LOW_IS_GOOD = re.compile(r"loss|error|perplexity|(^|[._])(ppl|nll|mse|mae|rmse|wer|cer|fid)($|[._])", re.IGNORECASE)


class Cell(NamedTuple):
    """One run of a sweep."""

    seen: Seen
    swept: tuple[tuple[str, Any], ...]
    job: str | None
    """Its name in the file of its chain."""
    needs: str
    """The jobs of its chain that it needs."""
    result: ResultRecord
    step: int | None
    measures: Mapping[str, float]
    seconds: float | None
    gpus: int
    """On all nodes."""


def cells(seen: Sequence[Seen], now: float) -> list[Cell]:
    """The cells of a sweep or the jobs of a chain, in its order."""
    made = []
    fields = ("swept", "processes", "nodes", "settings", "gpus")
    names = {one.run.id: store.read(PlanRecord, f"{one.run.path}/plan.json", ("job", "after")) for one in seen}
    for one in sorted(seen, key=lambda one: one.run.id):
        plan = store.read(PlanRecord, store.plan_path(one.run.path), fields)
        result = summary.result_of(one.run.path, one.state) if one.state.finished else ResultRecord()
        made.append(
            Cell(
                seen=one,
                swept=plan.swept,
                job=names[one.run.id].job,
                needs=_needs(names, names[one.run.id].after),
                result=result,
                step=last.number if (last := details.last_step(one.run, result)) else None,
                measures=measures(result) if one.state.finished else _so_far(one),
                seconds=summary.elapsed(one.state, now),
                gpus=(plan.gpus or 0) * (plan.nodes or 1),
            )
        )
    return made


def _needs(names: Mapping[str, PlanRecord], after: str | None) -> str:
    """What `after=` names, a job of this chain by its name."""
    items = (item.rpartition(":") for item in (after or "").split(",") if item)
    return ", ".join(f"{kind}{colon}{names[run].job if run in names else run}" for kind, colon, run in items)


def measures(result: ResultRecord) -> dict[str, float]:
    """What a run measured and logged, by name: the last training loss, what it measured on held-out samples
    (`eval.loss` where that is a loss), the last value of each name that its script logged, and its rate."""
    held_out = {"eval.loss" if name == "loss" else name: value for name, value in result.eval.items()}
    values = {"loss": result.loss.last, **held_out, **result.logged, RATE: result.throughput.mean}
    return {name: value for name, value in values.items() if isinstance(value, (int, float))}


def _so_far(seen: Seen) -> dict[str, float]:
    progress = details.progress(seen.run)
    values = {"loss": progress.loss, "accuracy": progress.accuracy}
    return {name: value for name, value in values.items() if value is not None}


def low_is_good(name: str) -> bool:
    """Whether the lowest value of a measure is the best, by its name."""
    return _LOW_IS_GOOD.search(name) is not None


def plain(name: str, known: Collection[str]) -> str:
    """The name of a measure as tables have it: `eval.accuracy` is the held-out accuracy, which they call `accuracy`."""
    return name if name in known else name.removeprefix("eval.")


def best_first(rows: Sequence[Cell], name: str, lowest: bool | None = None) -> list[Cell]:
    """The cells by a measure: lowest first for a loss or an error, highest first for anything else, or as `lowest`
    says, and those without it last. Raises `UsageError` for a measure that no cell has."""
    known = names(rows)
    name = plain(name, known)
    if name not in (*known, RATE):
        choices = ", ".join([*known, RATE])
        raise UsageError(f"--sort {name}: no run of this sweep has measured it; they have {choices}")
    sign = 1 if (low_is_good(name) if lowest is None else lowest) else -1
    with_it = [row for row in rows if name in row.measures]
    return [
        *sorted(with_it, key=lambda row: sign * row.measures[name]),
        *(row for row in rows if name not in row.measures),
    ]


def searched_by(rows: Sequence[Cell], search: SearchRecord) -> str | None:
    """The measure that the runs were searched by, once one of them has it; None of a sweep that is no search."""
    known = [*names(rows), RATE]
    return search.metric if search.metric and plain(search.metric, known) in known else None


def names(rows: Sequence[Cell]) -> list[str]:
    """What any cell measured or logged, but for the rate."""
    found = dict.fromkeys(name for row in rows for name in row.measures if name != RATE)
    first = [name for name in ("loss", "accuracy", "eval.loss") if name in found]
    return [*first, *(name for name in found if name not in first)]


def swept_keys(rows: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key, _ in row.swept))


def lines(rows: Sequence[Cell], width: int, shown: Sequence[Cell], now: float) -> list[str]:
    """The table of the cells that are shown, and what is said below it."""
    measured = (name.upper() for name in reversed(names(rows)))
    spare = ("PEAK MEMORY", *summary.RATES, "STEP", "TIME", *measured, "PROOF")
    return [*tables.lines(columns(rows, shown), width, spare), *notes(rows, shown, now)]


def last_words(folders: Sequence[Path], now: float, width: int) -> list[str]:
    """What a terminal of so many columns (0: no limit) says of several runs that have ended, and how to continue
    them."""
    rows = cells(backends.states_of([Run(str(folder.parent), folder.name) for folder in folders]), now)
    early = [row.seen for row in rows if row.seen.state.name in ended_runs.ENDED_EARLY and row.seen.state.attempt]
    names = dict.fromkeys(run_ids.sweep_of(one.run.id) or one.run.id for one in early)
    return [
        *lines(rows, width, rows, now),
        f"folders in {', '.join(dict.fromkeys(row.seen.run.root for row in rows))}",
        *(as_started(f"continue with: python -m launcher resume {name}") for name in names),
    ]


def columns(rows: Sequence[Cell], shown: Sequence[Cell]) -> list[Column]:
    """The columns of the table of all cells, with those that are shown."""
    unit, rates = units.rates(
        [(row.result.throughput.mean, row.result.throughput.unit or "samples/s") for row in shown]
    )
    sizes = [units.size(row.result.peak_memory_bytes) for row in shown]
    of_script = {name: [units.number(row.measures.get(name)) for row in shown] for name in names(rows)}
    return [
        Column("RUN", _labels(rows, [row.seen for row in shown])),
        *_of_chain(shown),
        *(Column(key.upper(), [_text(dict(row.swept).get(key)) for row in shown]) for key in swept_keys(rows)),
        Column("STATE", [row.seen.state.name for row in shown]),
        Column("TIME", [units.duration(row.seconds) for row in shown], right=True),
        Column("STEP", ["-" if row.step is None else str(row.step) for row in shown], right=True),
        *(Column(name.upper(), values, right=True) for name, values in of_script.items()),
        Column(unit.upper(), rates, right=True),
        *([Column("PEAK MEMORY", sizes, right=True)] if any(size != "-" for size in sizes) else []),
        Column("PROOF", [row.result.observed.verdict or "-" for row in shown]),
    ]


def notes(rows: Sequence[Cell], shown: Sequence[Cell], now: float) -> list[str]:
    """Why the first cells failed, what helps them, and a line on all of them."""
    failed = [row.seen for row in shown if row.seen.state.name in ("failed", "lost")]
    explained = zip(_labels(rows, failed[:FAILED]), failed, strict=False)
    why: list[str] = []
    remedies: dict[str, None] = {}
    for label, one in explained:
        _, last = log_tail.read(one.run.folder, one.state.attempt)
        why.append(f"{label}: {tables.clean(summary.headline(one.state, now))}")
        if last and last[-1].strip() and last[-1].strip() not in one.state.reason:
            why.append(f"  {tables.clean(last[-1].strip())}")
        remedies.update(dict.fromkeys(ended_runs.remedy(one.state, last)))
    more = [f"and {len(failed) - FAILED} more that failed"] if len(failed) > FAILED else []
    return [*why, *more, *remedies, total(rows, shown)]


def _of_chain(shown: Sequence[Cell]) -> list[Column]:
    if not any(row.job for row in shown):
        return []
    return [Column("JOB", [row.job or "-" for row in shown]), Column("NEEDS", [row.needs or "-" for row in shown])]


def total(rows: Sequence[Cell], shown: Sequence[Cell]) -> str:
    """How many there are in which state, and what they took."""
    seconds = sum(row.seconds or 0.0 for row in rows)
    hours = sum((row.seconds or 0.0) * row.gpus for row in rows) / 3600
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.seen.state.name] = counts.get(row.seen.state.name, 0) + 1
    some = f"{len(shown)} of " if len(shown) < len(rows) else ""
    first = f"{some}{len(rows)} run{'s' * (len(rows) != 1)}"
    states = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    gpu = f", {units.number(hours)} GPU hours" if hours else ""
    sweep = _sweep(rows)
    kind = "chain" if rows[0].job else "sweep"
    return tables.clean(
        f"{f'{kind} {sweep}: ' if sweep else ''}{first}, {states}, {units.duration(seconds)} in total{gpu}"
    )


def as_csv(shown: Sequence[Cell]) -> str:
    """A line for each cell under a header: numbers as they are, times in seconds."""
    swept, measured = swept_keys(shown), names(shown)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    chain = ["job", "needs"] if any(row.job for row in shown) else []
    header = ["run", *chain, *swept, "state", "seconds", "step", *measured, "rate", "unit", "proof"]
    writer.writerow(map(tables.clean, header))
    for row in shown:
        values = dict(row.swept)
        rate = row.result.throughput
        writer.writerow([
            row.seen.run.id,
            *([row.job, row.needs] if chain else []),
            *(tables.clean(_text(values.get(key))) for key in swept),
            row.seen.state.name,
            "" if row.seconds is None else round(row.seconds, 3),
            row.step,
            *(row.measures.get(name) for name in measured),
            rate.mean,
            tables.clean(rate.unit or ""),
            tables.clean(row.result.observed.verdict or ""),
        ])  # fmt: skip
    return out.getvalue()


def _sweep(rows: Sequence[Cell]) -> str | None:
    """The sweep that all of these runs are cells of."""
    sweeps = {run_ids.sweep_of(row.seen.run.id) for row in rows}
    return sweeps.pop() if len(sweeps) == 1 else None


def _labels(rows: Sequence[Cell], seen: Sequence[Seen]) -> list[str]:
    """The cells of one sweep by their numbers, other runs by their ids."""
    is_sweep = _sweep(rows) is not None
    return [one.run.id.rpartition("-")[2] if is_sweep else one.run.id for one in seen]


def _text(value: Any) -> str:
    return "" if value is None else show(value)
