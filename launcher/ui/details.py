"""Everything about one run, for a terminal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from launcher import safe_files, units
from launcher.runs import arms, follow, run_ids, run_roots, store
from launcher.runs.follow import LastStep
from launcher.runs.run_files import Files
from launcher.runs.schema import ComparedArm, PlanRecord, ResultRecord, Status
from launcher.runs.states import Seen, State, status_of
from launcher.runs.store import Run
from launcher.ui import display, ended_runs, summary, tables
from launcher.ui.progress import Progress, advance, rows_of

MOST_EARLIER = 10
"""Earlier attempts that are shown."""


def lines(seen: Seen, width: int = 0) -> list[str]:
    """The lines about a run, its texts in at most `width` columns (0: no limit)."""
    run, files, state, asked = seen
    folder, now = run.folder, time.time()
    plan = store.read(PlanRecord, store.plan_path(folder))
    result = summary.result_of(folder, state)
    rows = [("run", run.id), ("state", summary.headline(state, now))]
    if asked is not None:
        rows.append(("scheduler", f"asked {units.duration(now - asked)} ago"))
    if not files.owner.mine:
        rows.append(("owner", f"{files.owner.name}: shown by its files alone"))
    if sweep := run_ids.sweep_of(run.id):
        rows.append(("chain" if plan.job else "sweep", sweep))
    rows.append(("request", summary.request_of(plan)))
    for name, values in (("requested", result.requested), ("effective", result.effective)):
        if line := summary.settings_line(values):  # the arms of a comparison may have none in common
            rows.append((name, line))
    if not state.finished:
        if (current := progress(run)).step:
            rows.append(("progress", display.line(current, now if state.name == "running" else None)))
    elif result.updates.attempted is None and (last := last_step(run, result)):
        rows.append(("progress", f"ended at step {last.number}"))
    rows += [*summary.outcome(result), *summary.gpus(folder)]
    rows += [*ended_runs.slow_rows(folder, state), *ended_runs.hangs(folder, state)]
    rows += [("arm", line) for line in _arms(folder, plan, state, result)]
    rows.append(("where", _where(run, files, plan, state)))
    nothing_known = state.name == "unreachable" and files.submission is None
    rows.append(("submitted", files.submitted.submitted or ("not known" if nothing_known else "never")))
    if state.started:
        rows.append(("started", f"{state.started}, ended {state.ended}" if state.ended else state.started))
    rows.append(("attempts", "not known" if nothing_known else _attempts(run)))
    rows += _earlier_attempts(run, state)
    if said := follow.tail(folder / store.TRACKER_LOG, 1):
        rows.append(("tracker", said[0]))
    rows.append(("folder", summary.place_of(folder)))
    if run_roots.is_remote(run.root):
        rows.append(("known here", str(folder)))
    return [*tables.pairs(rows, width), *ended_runs.failure(folder, state)]


def progress(run: Run) -> Progress:
    """How far a run is by its rows here."""
    _, written = follow.Lines(run.folder / "metrics.jsonl").read()
    return advance(Progress(), rows_of(written))


def last_step(run: Run, result: ResultRecord) -> LastStep | None:
    """The last step that a run is known to have taken, by its result or, where it has none, its metrics."""
    if result.updates.attempted is not None:
        return LastStep(result.updates.attempted)
    if run_roots.is_remote(run.root):
        from launcher.runs import remote_record

        known = remote_record.known(run.folder)
        return LastStep(known.step, known.stepped) if known and known.step is not None else None
    return follow.last_step(run.path)


def _arms(folder: Path, plan: PlanRecord, comparison: State, result: ResultRecord) -> Iterator[str]:
    """The states of a comparison's arms, a line each; `report` compares them."""
    # An arm's own mean is over its steps, the comparison's over its rounds: an ended one shows the latter.
    compared = result.comparison.arms if result.comparison else ()
    rates = {arm.arm: _rate(arm) for arm in compared}
    for arm in arms.of(folder, plan):
        state = arms.state(arm.run, comparison)
        words = f"{state.name}: {state.reason}" if state.reason else state.name
        rate = rates.get(arm.run.id, summary.throughput_of(summary.result_of(arm.run.folder, state)))
        yield f"{arm.label}  {words}{', ' if rate else ''}{rate}"


def _rate(arm: ComparedArm) -> str:
    """The throughput of a comparison's arm with its unit; empty where it is not known."""
    from amp_launcher.metrics import RATES  # and the dataclasses that a listing does without

    rates = ((getattr(arm, key), unit) for key, unit in RATES)
    return next((f"{units.number(rate)} {unit}" for rate, unit in rates if rate is not None), "")


def _where(run: Run, files: Files, plan: PlanRecord, state: State) -> str:
    """Queue, job, host, container, and the GPUs that the attempt took. The host of a job of Slurm is that of its
    attempt, not the one that it was submitted on."""
    job, gpus, submission = None, "", files.submitted
    if submission.queue == "slurm" and files.owner.mine:  # it names the file that has the job's number
        from launcher.executors.slurm.jobs import job_of

        job = job_of(submission)
    with contextlib.suppress(OSError):
        gpus = safe_files.read_text(run.folder / "attempts" / str(state.attempt) / "gpus").strip()
    slurm = (submission.queue or plan.queue) == "slurm"
    process = (status_of(files) or Status()).process if slurm and state.name != "queued" else None
    host = (process.host if process else None) if slurm else submission.host
    others = (plan.nodes or 1) - 1 if slurm else 0
    parts = [
        (f"slurm job {job}" if job else "slurm") if slurm else "",
        f"{'on ' * slurm}{host}{f' and {others} more' * bool(others)}" if host else "",
        f"in {plan.container.runtime.kind}" if plan.container else "",
        f"on GPU {gpus}" if gpus else "",
    ]
    return " ".join(part for part in parts if part) or "-"


def _earlier_attempts(run: Run, state: State) -> Iterator[tuple[str, str]]:
    """How the newest attempts before this one ended, where they recorded it."""
    for number in [number for number in store.attempts(run.path) if number < state.attempt][-MOST_EARLIER:]:
        status = store.read(Status, f"{run.path}/attempts/{number}/{store.ENDED}")
        if status.state:
            yield f"attempt {number}", f"{status.state}{': ' if status.reason else ''}{status.reason or ''}"


def _attempts(run: Run) -> str:
    numbers = store.attempts(run.path)
    asked = [str(number) for number in numbers if os.path.exists(f"{run.path}/attempts/{number}/stopped.json")]
    stopped = f" (stopped when asked: {', '.join(asked)})" if asked else ""
    return f"{len(numbers) or 'none'}{stopped}"
