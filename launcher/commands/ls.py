"""`ls`: list runs and their states, or show everything about one."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import Any

from launcher import units, waiting
from launcher.commands.arguments import Parser, one_of, positive, split
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import remote_record, run_ids, run_roots, selection, states, store, terminals
from launcher.runs.filters import Filter
from launcher.runs.schema import PlanRecord, ResultRecord, SearchRecord
from launcher.runs.states import Seen
from launcher.runs.store import Run
from launcher.ui import details, summary, tables
from launcher.ui.tables import Column

NEWEST = 20
SPARE = (*summary.RATES, "PROOF", "HOST", "OWNER", "REQUEST", "ACCURACY", "STEP", "TIME")
"""Columns that a narrow terminal does without, the first one first."""
OPTIONAL = ("HOST", "LAST STEP", "WAITS FOR", "ACCURACY")
"""Columns that are shown where a run has something in them."""
_PLAN_FIELDS = (*summary.REQUEST_FIELDS, "up", "nodes", "gpus")
MOST = 60
"""Most rows of a listing without --all."""


def main(arguments: list[str]) -> int:
    about = (
        "List runs; with a RUN, everything about it; with a SWEEP, its values and what its runs measured; with "
        "KEY=VALUE, those that have the value: state, name, date, a word of their command, or a setting of their "
        "training or cluster, as amp.level=o2."
    )
    parser = Parser("ls", "[RUN|SWEEP] [KEY=VALUE ...] [--all] [--json] [--sort NAME] [--best N] [--csv]", about)
    parser.add_argument("--all", action="store_true", help="every run, not only unfinished ones and the newest")
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects, or one for a RUN")
    parser.add_argument(
        "--sort",
        metavar="NAME",
        help="of a sweep or with KEY=VALUE: best first by loss, accuracy, rate or a logged name",
    )
    parser.add_argument("--best", metavar="N", type=positive, help="likewise: only the first N; by loss without --sort")
    parser.add_argument("--csv", action="store_true", help="likewise: for spreadsheets")
    options = parser.parse_intermixed_args(arguments)
    words = [word for word in options.words if "=" in word and not word.startswith("run_root=")]
    names, roots, _ = split([word for word in options.words if word not in words])
    values, width = Filter(words), tables.width_of(sys.stdout)
    if names:
        return _named(names, roots, options, values, width)
    for root in roots:
        if not os.access(root, os.R_OK | os.X_OK):
            print(f"{tables.clean(root)} may not be read, so its runs are not listed", file=sys.stderr)
    if words:
        return _with(values, roots, options, width)
    _refuse_sweep_flags(options, "")
    wanted, hidden = (selection.newest(roots), 0) if options.all else _default(roots, None if options.json else MOST)
    with waiting.shown(lambda: f"asking about {len(wanted):,} runs"):
        seen = backends.states_of(wanted)
    backends.settle(seen)
    if options.json:
        print(json.dumps([_object(entry) for entry in seen], indent=1))
    else:
        print("\n".join(listing(seen, hidden, roots, width)))
    return 0


def _refuse_sweep_flags(options: Namespace, run: str) -> None:
    given = next((f"--{name}" for name in ("sort", "best", "csv") if getattr(options, name)), "")
    if given:
        raise UsageError(f"ls: {given} is for a sweep{f', and {run} is a run' if run else ': ls SWEEP ' + given}")


def _named(names: Sequence[str], roots: Sequence[str], options: Namespace, values: Filter, width: int) -> int:
    """A run or a sweep."""
    what = one_of("ls", names, roots)
    seen = backends.states_of(what.runs, follow=what.sweep is None)
    backends.settle(seen)
    if what.sweep is not None:
        known = {one.run: one for one in seen}
        matching = values.select(what.runs, lambda runs: [known[run] for run in runs], None)
        return _table(seen, matching, options, width, f"sweep {what.sweep} has no runs")
    (one,) = seen
    _refuse_sweep_flags(options, one.run.id)
    if values.words:
        raise UsageError(f"ls: {values.words[0]} is for a listing, and {one.run.id} is a run")
    print(json.dumps(_all_of(one), indent=1) if options.json else "\n".join(details.lines(one, width)))
    return 0


def _with(values: Filter, roots: Sequence[str], options: Namespace, width: int) -> int:
    """The runs that have some values."""
    from launcher.ui import sweep_table

    compared = options.sort or options.best or options.csv
    most = None if options.all or options.json or compared else MOST
    seen = values.select(selection.newest(roots), backends.states_of, most)
    backends.settle(seen)
    if options.json or compared or not seen:
        return _table(seen, seen, options, width, "no run has these values")
    now, listed = time.time(), seen[:most]
    print("\n".join(listing(listed, 0, roots, width)[: len(listed) + 1]))
    total = sweep_table.total(rows := sweep_table.cells(listed, now), rows)
    print(f"the newest {total.replace(' runs', '', 1)}; --all has the rest" if len(seen) > len(listed) else total)
    return 0


def _search(seen: Sequence[Seen]) -> SearchRecord:
    """What the runs were searched by; an empty record of others than the runs of one search."""
    places = {(one.run.root, run_ids.sweep_of(one.run.id)) for one in seen}
    root, sweep = places.pop() if len(places) == 1 else ("", None)
    if sweep is None:
        return SearchRecord()
    return store.read(SearchRecord, store.search_folder(root, sweep) / store.SEARCH)


def _table(seen: Sequence[Seen], matching: Sequence[Seen], options: Namespace, width: int, none: str) -> int:
    """The runs of a sweep, or of a listing, with what they measured: those that match, or the best of them."""
    from launcher.ui import sweep_table

    now = time.time()
    rows = sweep_table.cells(seen, now)
    wanted = {one.run for one in matching}
    shown = [row for row in rows if row.seen.run in wanted]
    search = _search(seen)
    lowest = None if options.sort else search.lowest
    sort = options.sort or sweep_table.searched_by(shown, search) or ("loss" if options.best else None)
    shown = (sweep_table.best_first(shown, sort, lowest) if sort else shown)[: options.best]
    if options.json:
        print(json.dumps([_object(row.seen) for row in shown], indent=1))
    elif options.csv:
        print(sweep_table.as_csv(shown), end="")
    elif not rows:
        print(tables.clean(none))
    else:
        print("\n".join([*sweep_table.lines(rows, width, shown, now), *_notes(seen, now)]))
    return 0


def _default(roots: Sequence[str], most: int | None) -> tuple[list[Run], int]:
    """The runs to list without --all, newest first, and how many older ones there are that aren't."""
    chosen = {*selection.newest(roots, NEWEST), *selection.unfinished(roots)}
    listed = sorted(chosen, key=lambda run: run.id, reverse=True)
    return listed[:most], len(listed[most:]) if most else 0


def listing(seen: Sequence[Seen], hidden: int, roots: Sequence[str], width: int = 0) -> list[str]:
    """The table of runs and the notes below it; `hidden` is how many unfinished ones it leaves out, `width` is in
    characters, 0 for no limit."""
    if not seen:
        return [f"no runs{' in ' + ', '.join(roots) if roots else ' yet'}"]
    now = time.time()
    results = [
        summary.result_of(run.path, state, summary.ROW_FIELDS) if state.finished else ResultRecord()
        for run, _, state, _ in seen
    ]
    steps = [details.last_step(entry.run, result) for entry, result in zip(seen, results, strict=True)]
    ages = [
        f"{units.duration(now - step.time)} ago" if step and step.time and entry.state.name == "running" else "-"
        for entry, step in zip(seen, steps, strict=True)
    ]
    waits = [", ".join(map(run_ids.words_of, states.waits_for(entry.state))) or "-" for entry in seen]
    plans = [store.read(PlanRecord, store.plan_path(entry.run.path), _PLAN_FIELDS) for entry in seen]
    rate, rates = units.rates([(result.throughput.mean, result.throughput.unit or "samples/s") for result in results])
    columns = [
        Column("RUN", [entry.run.id for entry in seen]),
        Column("STATE", [entry.state.name for entry in seen]),
        Column("OWNER", [entry.files.owner.name or "-" for entry in seen]),
        Column("HOST", [_host(entry.run) for entry in seen]),
        Column("TIME", [units.duration(summary.elapsed(entry.state, now)) for entry in seen], right=True),
        Column("STEP", ["-" if step is None else str(step.number) for step in steps], right=True),
        Column("LAST STEP", ages, right=True),
        Column("WAITS FOR", waits),
        Column("ACCURACY", [summary.accuracy_of(result) or "-" for result in results], right=True),
        Column(rate.upper(), rates, right=True),
        Column("PROOF", [result.observed.verdict or "-" for result in results]),
        Column("REQUEST", list(map(summary.request_of, plans))),
    ]
    if all(entry.files.owner.mine for entry in seen):
        columns = [column for column in columns if column.name != "OWNER"]
    shown = [column for column in columns if column.name not in OPTIONAL or any(cell != "-" for cell in column.cells)]
    lines = tables.lines(shown, width, SPARE)
    if hidden:
        lines.append(f"and {hidden} more that have not ended (`ls --all` lists everything)")
    lines += [line for entry, plan in zip(seen, plans, strict=True) if (line := _up(entry, plan, now))]
    lines += _notes(seen, now)
    if len(seen) > NEWEST:
        counts = Counter(entry.state.name for entry in seen)
        lines.append(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return lines


def _up(seen: Seen, plan: PlanRecord, now: float) -> str:
    """What a run of `up` costs while it runs, and how long nobody has used it; empty for another run."""
    taken = summary.elapsed(seen.state, now)
    if not plan.up or seen.state.name != "running" or taken is None:
        return ""
    gpus = (plan.nodes or 1) * (plan.gpus or 0)
    cost = f"{taken * gpus / 3600:.1f} GPU hours" if gpus else f"{units.duration(taken)} without a GPU"
    name = run_ids.words_of(seen.run.id)
    idle = _idle(seen.run, now - taken)
    use = "" if idle is None else f", idle for {units.duration(idle)}" if idle else ", a terminal is open"
    return f"{name} is up{use}: {cost} so far; `down {name}` ends it"


def _idle(run: Run, started: float) -> float | None:
    """For how many seconds nobody has used it, 0 while a terminal is open; None where that is not known."""
    if not run_roots.is_remote(run.root):
        return terminals.idle(run.path, started)
    known = remote_record.known(run.folder)
    return known.idle if known else None


def _notes(seen: Sequence[Seen], now: float) -> list[str]:
    """Which hosts don't answer, whose runs can't be read, and how old the scheduler's answer is."""
    silent = {_host(entry.run): entry.state.reason for entry in reversed(seen) if entry.state.name == "unreachable"}
    lines = [f"{host}: {reason}" for host, reason in silent.items() if host != "-"]
    lines += dict.fromkeys(entry.files.owner.why for entry in seen if entry.files.owner.why)
    if asked := [entry.asked for entry in seen if entry.asked is not None]:
        lines.append(f"the scheduler was asked {units.duration(now - min(asked))} ago")
    return lines


def _host(run: Run) -> str:
    """The host of a run as it was typed; a dash for this machine."""
    if not run_roots.is_remote(run.root):
        return "-"
    pointer = remote_record.read(run.folder)
    return pointer.address.destination if pointer else "?"


def _all_of(seen: Seen) -> dict[str, Any]:
    """One run with its records, for a program."""
    folder = seen.run.folder
    return {
        **_object(seen),
        "attempts": store.attempts(folder),
        "plan": store.read_or_empty(store.plan_path(folder)) or None,
        "progress": details.progress(seen.run)._asdict(),
        "result": store.read_or_empty(folder / "result.json") or None,
    }


def _object(seen: Seen) -> dict[str, Any]:
    """One run for a program. Names are added here, never changed."""
    run, files, state, asked = seen
    submission = files.submitted
    plan = store.read(PlanRecord, store.plan_path(run.folder), ("name", "words", "swept"))
    result = summary.result_of(run.folder, state) if state.finished else ResultRecord()
    return {
        "id": run.id,
        "owner": files.owner.name or None,
        "name": plan.name,
        "words": plan.words,
        "sweep": run_ids.sweep_of(run.id),
        "swept": dict(plan.swept),
        "folder": run.path,
        "at": _host(run) if run_roots.is_remote(run.root) else None,
        "state": state.name,
        "reason": state.reason,
        "finished": state.finished,
        "attempt": state.attempt,
        "exit_code": state.exit_code,
        "submitted": submission.submitted,
        "started": state.started,
        "ended": state.ended,
        "queue": submission.queue,
        "host": submission.host,
        "scheduler_age": None if asked is None else round(max(0.0, time.time() - asked), 1),
        "metrics": _metrics(run, result),
    }


def _metrics(run: Run, result: ResultRecord) -> dict[str, Any]:
    """What a listing shows of a run's results, as numbers; null where it left none. Throughput in its unit per second,
    memory in bytes."""
    last = details.last_step(run, result)
    return {
        "step": last.number if last else None,
        "step_time": last.time if last else None,
        "loss": result.loss.last,
        "accuracy": result.eval.get("accuracy"),
        "logged": dict(result.logged),
        "throughput": result.throughput.mean,
        "throughput_unit": result.throughput.unit,
        "peak_memory_bytes": result.peak_memory_bytes,
        "proof": result.observed.verdict,
        "proved": None if result.observed.verdict is None else result.observed.verdict == "proved",
    }
