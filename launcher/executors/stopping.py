"""Stopping, cancelling and killing runs. The run folder says afterwards how each ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from amp_launcher import records
from launcher.executors import backends
from launcher.runs import ownership, processes, run_files, run_roots, store
from launcher.runs.schema import PlanRecord
from launcher.runs.states import Seen
from launcher.runs.store import Run

STOP_GRACE = 30.0
"""Seconds that a run has to save and end, where its plan gives none."""


class Ended(NamedTuple):
    """A run after an attempt to end it."""

    seen: Seen
    why_not: str
    """Why it could not be ended; empty if it was."""


class Stop(NamedTuple):
    """How a run stops by itself when it is asked to."""

    script: bool
    """Whether it is a user's own script; a recipe reads STOP."""
    signal: str | None
    """The signal that asks a script, without `SIG`; None for a script that can't be asked, and for a recipe."""
    grace: float
    """Seconds that it has to end."""

    @property
    def possible(self) -> bool:
        """Whether the run can be asked."""
        return not self.script or self.signal is not None


def request_stop(folder: Path) -> None:
    """Ask the trainer to save and stop at its next step. Raises `UsageError` for another user's run."""
    ownership.refuse_other_users("stop", [(str(folder.parent), folder.name)])
    if run_roots.is_remote(str(folder.parent)):
        from launcher.ssh import actions

        actions.request_stop([Run(str(folder.parent), folder.name)])
    else:
        open(folder / "STOP", "ab", opener=records.record).close()


def request_cancel(folder: Path) -> None:
    """The same, recording that the end was requested; a run that has not started never will."""
    _mark_cancelled(folder)
    request_stop(folder)


def _mark_cancelled(folder: Path, killed: str | None = None) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    store.write_json(folder / "cancelled", {"time": moment, **({"killed": killed} if killed else {})})


def clear(folder: Path) -> None:
    """Remove such requests, Slurm's verdict on the job before and the counts of requeues and restarts, as the run is
    submitted again."""
    counts = (*folder.glob("attempts/*/requeued"), *folder.glob("attempts/*/restarted"))
    for path in (folder / "cancelled", folder / "STOP", folder / store.VERDICT, *counts):
        path.unlink(missing_ok=True)


def kill_all(folders: Iterable[Path]) -> dict[Path, str]:
    """End every process of the runs at once, all together, and mark them as cancelled: one after another, a sweep's
    next run would start while the last one is killed. Returns the reasons for those that could not be ended."""
    ended = cancel([Run(str(folder.parent), folder.name) for folder in folders], now=True)
    return {run_ended.seen.run.folder: run_ended.why_not for run_ended in ended if run_ended.why_not}


def cancel(
    wanted: Sequence[Run],
    *,
    now: bool = False,
    stop_grace: float | None = None,
    term_grace: float = processes.TERM_GRACE,
    say: Callable[[str], None] = lambda _: None,
) -> list[Ended]:
    """End the runs: STOP, after a grace TERM, after another KILL; `now` kills at once. Those that can't be asked to
    stop get no grace. By default it is the longest `cluster.stop_before` of the others. Finished runs are left as they
    are, except for processes that outlived their shell. Raises `UsageError`, before anything is done, if one is another
    user's."""
    ownership.refuse_other_users("cancel", wanted)
    stops = {run.folder: stop_of(run.folder) for run in wanted}
    if stop_grace is None:
        stop_grace = max((stop.grace for stop in stops.values() if stop.possible), default=STOP_GRACE)
    far = [run for run in wanted if run_roots.is_remote(run.root)]
    failed = _cancel_here([run for run in wanted if run not in far], stops, now, stop_grace, term_grace, say)
    if far:
        from launcher.ssh import actions

        failed |= {run.path: why for run, why in actions.cancel(far, now, stop_grace, term_grace).items()}
    after = backends.states_of(wanted, fresh=True)
    backends.settle(after)
    return [Ended(row, failed.get(row.run.path, "")) for row in after]


def _cancel_here(
    wanted: Sequence[Run],
    stops: Mapping[Path, Stop],
    now: bool,
    stop_grace: float,
    term_grace: float,
    say: Callable[[str], None],
) -> dict[str, str]:
    """The same for runs of this machine. Returns the reasons for the folders of those that could not be ended."""
    rest = unended(backends.states_of(wanted))
    waiting = {row.run: row for row in rest if _waits_in_a_scheduler(row)}
    for row in rest:
        if row.run in waiting:  # with nothing to save
            _mark_cancelled(row.run.folder, "before it started again" if row.state.attempt else None)
        elif not row.state.finished:
            request_cancel(row.run.folder)
    failed = _end(list(waiting), 0)
    rest = [row for row in rest if row.run not in waiting]
    asked = [row for row in rest if not now and not row.state.finished and stops[row.run.folder].possible]
    deadline = time.monotonic() + stop_grace
    for request in _requests([stops[row.run.folder] for row in asked]):
        say(f"{request}; what has not ended in {stop_grace:.0f} s is killed (cancel --now kills at once)")
    failed |= _kill([row for row in rest if row not in asked], 0 if now else term_grace, say)
    if asked:
        rest = _wait([row.run for row in asked], deadline)
        for row in rest:
            if not row.state.finished:
                _mark_cancelled(row.run.folder, f"it did not end within {stop_grace:.0f} s and was killed")
        failed |= _kill(rest, term_grace, say)
    return failed


def _requests(stops: Sequence[Stop]) -> Iterator[str]:
    for name, count in Counter(stop.signal for stop in stops).items():
        if name is None:
            yield f"asked {count} run{'s' * (count > 1)} to save and stop at the next step"
        else:
            yield f"asked {count} script{'s' * (count > 1)} to stop, by SIG{name} or job.should_stop()"


def _waits_in_a_scheduler(row: Seen) -> bool:
    return row.files.submitted.queue == "slurm" and (row.state.attempt == 0 or row.state.name == "queued")


def _kill(rows: Sequence[Seen], grace: float, say: Callable[[str], None]) -> dict[str, str]:
    if rows:
        say(f"killing {', '.join(row.run.id for row in rows)}")
    return _end([row.run for row in rows], grace)


def _end(wanted: Sequence[Run], grace: float) -> dict[str, str]:
    return backends.end({run.path: run_files.load(run.path) for run in wanted}, grace) if wanted else {}


def stop_of(folder: Path) -> Stop:
    """How the run stops, by the plan that holds now."""
    plan = store.read(PlanRecord, store.plan_path(folder), ("script", "cluster"))
    seconds = plan.cluster.stop_before
    return Stop(
        script=plan.script is not None,
        signal=plan.script.stop_signal if plan.script else None,
        grace=STOP_GRACE if seconds is None else float(seconds),
    )


def unended(seen: Sequence[Seen]) -> list[Seen]:
    """Of these runs of this machine those that are not finished, or still have live processes."""
    alive = backends.with_processes({row.run.path: row.files for row in seen if row.state.finished})
    return [row for row in seen if not row.state.finished or row.run.path in alive]


def _wait(wanted: Iterable[Run], deadline: float) -> list[Seen]:
    """Those that have not ended by then."""
    while rest := unended(backends.states_of(wanted)):
        if time.monotonic() >= deadline:
            break
        time.sleep(0.2)
        wanted = [row.run for row in rest]
    return rest
