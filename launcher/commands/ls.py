"""`ls`: list runs and their states, or show everything about one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher import safe_files, units
from launcher.commands.arguments import Parser, split
from launcher.errors import UsageError
from launcher.executors import backends
from launcher.runs import follow, run_ids, run_roots, selection, store
from launcher.runs.schema import ComparedArm, PlanRecord, ResultRecord, Submission
from launcher.runs.states import Seen, State
from launcher.runs.store import Files, Run
from launcher.ui import summary, tables
from launcher.ui.progress import Progress, advance, rows_of
from launcher.ui.tables import Column

NEWEST = 20
SPARE = (*summary.RATES, "PROOF", "HOST", "OWNER", "REQUEST", "ACCURACY", "STEP", "TIME")
"""Columns that a narrow terminal does without, the first one first."""
MOST = 60
"""Most rows of a listing without --all."""


def main(arguments: list[str]) -> int:
    parser = Parser("ls", "[RUN|SWEEP] [--all] [--json]", "List runs; with a RUN, everything about it.")
    parser.add_argument("--all", action="store_true", help="every run, not only unfinished ones and the newest")
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects, or one for a RUN")
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    if len(names) > 1:
        raise UsageError(f"ls: one run or sweep at a time, not {len(names)}: {' '.join(names)}")
    if names:
        what = selection.find(names[0], roots)
        if what.sweep is None:
            return _one(what.runs[0], options.json)
        wanted, hidden = list(what.runs), 0
    else:
        wanted, hidden = _default(roots, options.all or options.json, options.all)
    for root in roots:
        if not os.access(root, os.R_OK | os.X_OK):
            print(f"{tables.clean(root)} may not be read, so its runs are not listed", file=sys.stderr)
    seen = backends.look(wanted)
    backends.settle(seen)
    if options.json:
        print(json.dumps([_object(entry) for entry in seen], indent=1))
    else:
        print("\n".join(_listing(seen, hidden, roots, tables.width_of(sys.stdout))))
    return 0


def _default(roots: Sequence[str], unlimited: bool, everything: bool) -> tuple[list[Run], int]:
    """The runs to list, newest first, and how many older ones there are that aren't."""
    if everything:
        names = [Run(root, name) for root in roots for name in selection.run_names(root)]
        return sorted(names, key=lambda run: run.id, reverse=True), 0
    chosen = {*selection.newest(roots, NEWEST), *selection.unfinished(roots)}
    listed = sorted(chosen, key=lambda run: run.id, reverse=True)
    return (listed, 0) if unlimited else (listed[:MOST], max(0, len(listed) - MOST))


def _listing(seen: Sequence[Seen], hidden: int, roots: Sequence[str], width: int = 0) -> list[str]:
    if not seen:
        return [f"no runs{' in ' + ', '.join(roots) if roots else ' yet'}"]
    now = time.time()
    results = [
        summary.result_of(f"{run.root}/{run.id}", state, summary.ROW_FIELDS) if state.finished else ResultRecord()
        for run, _, state, _ in seen
    ]
    durations, *measured = summary.measurements([entry.state for entry in seen], results, now)
    columns = [
        Column("RUN", [entry.run.id for entry in seen]),
        Column("STATE", [entry.state.name for entry in seen]),
        Column("OWNER", [entry.files.owner.name or "-" for entry in seen]),
        Column("HOST", [_host(entry.run) for entry in seen]),
        durations,
        Column("STEP", [_step(entry, result) for entry, result in zip(seen, results, strict=True)], right=True),
        *measured,
        Column("REQUEST", [_request(entry.run) for entry in seen]),
    ]
    needed = {"OWNER": any(not entry.files.owner.mine for entry in seen)}
    needed["HOST"] = any(run_roots.is_remote(entry.run.root) for entry in seen)
    lines = tables.lines([column for column in columns if needed.get(column.name, True)], width, SPARE)
    silent = {_host(entry.run): entry.state.reason for entry in reversed(seen) if entry.state.name == "unreachable"}
    lines += [f"{host}: {reason}" for host, reason in silent.items() if host != "-"]
    lines += dict.fromkeys(entry.files.owner.why for entry in seen if entry.files.owner.why)
    if hidden:
        lines.append(f"and {hidden} more that have not ended (`ls --all` lists everything)")
    if asked := [entry.asked for entry in seen if entry.asked is not None]:
        lines.append(f"the scheduler was asked {_ago(min(asked), now)}")
    counts = Counter(entry.state.name for entry in seen)
    if len(seen) > NEWEST:
        lines.append(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return lines


def _step(entry: Seen, result: ResultRecord) -> str:
    step = _last_step(entry.run, result)
    return "-" if step is None else str(step)


def _request(run: Run) -> str:
    return summary.request_of(store.read(PlanRecord, store.plan_path(f"{run.root}/{run.id}"), summary.REQUEST_FIELDS))


def _ago(moment: float, now: float) -> str:
    """How long ago that was. A scheduler is asked rarely, and its last answer is shown meanwhile."""
    return f"{units.duration(max(0.0, now - moment))} ago"


def _host(run: Run) -> str:
    """The host of a run as it was typed; a dash for this machine."""
    if not run_roots.is_remote(run.root):
        return "-"
    from launcher.runs import remote_record

    pointer = remote_record.of(run.folder)
    return pointer.address.destination if pointer else "?"


def _last_step(run: Run, result: ResultRecord) -> int | None:
    """The last step that a run is known to have taken, by its result or, where it has none, its metrics."""
    if result.updates.attempted is not None:
        return result.updates.attempted
    if run_roots.is_remote(run.root):
        from launcher.runs import remote_record

        known = remote_record.known(run.folder)
        return known.step if known else None
    return follow.last_step(f"{run.root}/{run.id}")


def _one(run: Run, as_json: bool) -> int:
    (seen,) = backends.look([run], follow=True)
    backends.settle([seen])
    if as_json:
        folder = run.folder
        details = {
            **_object(seen),
            "attempts": store.attempts(folder),
            "plan": store.read_or_empty(store.plan_path(folder)) or None,
            "progress": _progress(run)._asdict(),
            "result": store.read_or_empty(folder / "result.json") or None,
        }
        print(json.dumps(details, indent=1))
    else:
        print("\n".join(_details(seen, tables.width_of(sys.stdout))))
    return 0


def _details(seen: Seen, width: int = 0) -> list[str]:
    run, files, state, asked = seen
    folder, now = run.folder, time.time()
    plan = store.read(PlanRecord, store.plan_path(folder))
    result = summary.result_of(folder, state)
    submission = files.submission or Submission()
    rows = [("run", run.id), ("state", summary.headline(state, now))]
    if asked is not None:
        rows.append(("scheduler", f"asked {_ago(asked, now)}"))
    if not files.owner.mine:
        rows.append(("owner", f"{files.owner.name}: shown by its files alone"))
    sweep = run_ids.sweep_of(run.id)
    if sweep:
        rows.append(("sweep", sweep))
    rows.append(("request", summary.request_of(plan)))
    for name, values in (("requested", result.requested), ("effective", result.effective)):
        if line := summary.settings_line(values):  # the arms of a comparison may have none in common
            rows.append((name, line))
    if not state.finished:
        progress = _progress(run)
        if progress.step:
            from launcher.ui import display

            rows.append(("progress", display.line(progress)))
    elif result.updates.attempted is None and (step := _last_step(run, result)):
        rows.append(("progress", f"ended at step {step}"))
    rows += [*summary.outcome(result), *summary.gpus(folder)]
    rows += [("arm", line) for line in _arms(folder, plan, state, result)] if plan.arms else []
    rows.append(("where", f"{_where(files, plan)}{_on_gpus(folder, state.attempt)}"))
    nothing_known = state.name == "unreachable" and files.submission is None
    rows.append(("submitted", submission.submitted or ("not known" if nothing_known else "never")))
    if state.started:
        rows.append(("started", f"{state.started}, ended {state.ended}" if state.ended else state.started))
    numbers = store.attempts(folder)
    rows.append(("attempts", "not known" if nothing_known else _attempts(run, numbers)))
    rows.append(("folder", summary.place_of(folder)))
    if run_roots.is_remote(run.root):
        rows.append(("known here", str(folder)))
    return [*tables.pairs(rows, width), *summary.failure(folder, state)]


def _on_gpus(folder: Path, attempt: int) -> str:
    """The GPUs of this host that an attempt took, by index."""
    try:
        return f" on GPU {safe_files.read_text(folder / 'attempts' / str(attempt) / 'gpus').strip()}"
    except OSError:
        return ""


def _arms(folder: Path, plan: PlanRecord, comparison: State, result: ResultRecord) -> Iterator[str]:
    """The states of a comparison's arms, a line each; `report` compares them."""
    from launcher.runs import arms

    # An arm's own mean is over its steps, that of the comparison over its rounds: one that has ended shows the latter.
    compared = result.comparison.arms if result.comparison else ()
    rates = {arm.arm: _rate(arm) for arm in compared}
    for arm in arms.of(folder, plan):
        state = arms.state(arm.run, comparison)
        words = f"{state.name}: {state.reason}" if state.reason else state.name
        own = summary.result_of(arm.run.folder, state)
        mean = summary.throughput_of(own)
        rate = rates.get(arm.run.id, f"{mean} {own.throughput.unit or 'samples/s'}" if mean else "")
        yield f"{arm.label}  {words}{', ' if rate else ''}{rate}"


def _rate(arm: ComparedArm) -> str:
    """The throughput of a comparison's arm with its unit; empty where it is not known."""
    from recipes.metrics import RATES

    for key, unit in RATES:
        if (rate := getattr(arm, key)) is not None:
            return f"{units.number(rate)} {unit}"
    return ""


def _where(files: Files, plan: PlanRecord) -> str:
    job, submission = None, files.submission or Submission()
    if submission.queue == "slurm" and files.owner.mine:  # it names the file that has the job's number
        from launcher.executors.slurm.jobs import job_of

        job = job_of(submission)
    container = plan.container.runtime.kind if plan.container else None
    parts = [
        submission.queue or plan.queue or "-",
        f"job {job}" if job else "",
        f"on {submission.host}" if submission.host else "",
        f"in {container}" if container else "",
    ]
    return " ".join(part for part in parts if part)


def _attempts(run: Run, numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    asked = [number for number in numbers if os.path.exists(f"{run.root}/{run.id}/attempts/{number}/stopped.json")]
    stopped = f" (stopped when asked: {', '.join(map(str, asked))})" if asked else ""
    return f"{len(numbers)}{stopped}"


def _progress(run: Run) -> Progress:
    _, lines = follow.Lines(run.folder / "metrics.jsonl").read()
    return advance(Progress(), rows_of(lines))


def _object(seen: Seen) -> dict[str, Any]:
    """One run for a program. Names are added here, never changed."""
    run, files, state, asked = seen
    submission = files.submission or Submission()
    plan = store.read(PlanRecord, store.plan_path(run.folder), ("name", "words"))
    result = summary.result_of(run.folder, state) if state.finished else ResultRecord()
    return {
        "id": run.id,
        "owner": files.owner.name or None,
        "name": plan.name,
        "words": plan.words,
        "sweep": run_ids.sweep_of(run.id),
        "folder": f"{run.root}/{run.id}",
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
    return {
        "step": _last_step(run, result),
        "loss": result.loss.last,
        "accuracy": result.eval.get("accuracy"),
        "throughput": result.throughput.mean,
        "throughput_unit": result.throughput.unit,
        "peak_memory_bytes": result.peak_memory_bytes,
        "proof": result.observed.verdict,
    }
