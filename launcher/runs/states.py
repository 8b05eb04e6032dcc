"""The state of a run, from the records in its folder and from what its queue knows of its processes.

Nothing is shown as running that is not, and nothing is lost without a reason. `judge` is pure; `executors.backends`
collects its inputs.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast, get_args

from launcher import admit
from launcher.runs.schema import Status
from launcher.runs.store import Files, Run

Name = Literal[
    "queued", "running", "suspended", "stopping", "done", "failed", "stopped", "cancelled", "lost", "unreachable"
]

FINISHED: frozenset[str] = frozenset({"done", "failed", "stopped", "cancelled", "lost"})
"""States that change only by a new submission. An unreachable run may still be running."""


SILENT = "its script did not start, or ended without recording why; see launch.log"


class Liveness(NamedTuple):
    """What a queue knows of a run that its folder calls unfinished."""

    life: Literal["alive", "gone", "unknown"]
    """`alive`: running, or waiting for its turn."""
    reason: str = ""
    """In words: what it waits for, how it ended, why nothing is known."""
    outcome: Literal["", "failed", "cancelled"] = ""
    """Of one that is gone: how it ended according to the queue, if the queue says so."""
    waits: bool = False
    """Of one that is alive: it has no processes now and will get some, as a job that was put back into its queue."""
    suspended: bool = False
    """Of one that is alive: its processes are halted, and go on when the scheduler lets them."""
    asked: float | None = None
    """When its scheduler was asked, in seconds since 1970; None where none was."""


class State(NamedTuple):
    """A run's state and the reason for it."""

    name: Name
    reason: str = ""
    attempt: int = 0
    """0 before the first one started."""
    exit_code: int | None = None
    started: str | None = None
    ended: str | None = None
    before: int = 0
    """Seconds that earlier attempts ran."""

    @property
    def finished(self) -> bool:
        return self.name in FINISHED


class Seen(NamedTuple):
    """A run with its files and its state."""

    run: Run
    files: Files
    state: State
    asked: float | None = None
    """When the scheduler was asked, in seconds since 1970; None where its files or processes show the state."""


LONGEST_REASON = 2000
LARGEST_ATTEMPT = 10**6


def admitted(value: Any) -> State:
    """A state that another machine, or a file, gives as a list. Raises `admit.Refused`."""
    name, reason, attempt, code, started, ended, before = admit.items(value, "a state", 7, least=7)
    times = [None if moment is None else admit.text(moment, "a time", 64) for moment in (started, ended)]
    return State(
        cast(Name, admit.choice(name, "a state", get_args(Name))),
        admit.text(reason, "a reason", LONGEST_REASON),
        attempt=admit.whole(attempt, "an attempt", LARGEST_ATTEMPT),
        exit_code=None if code is None else admit.whole(code, "an exit code", 2**31 - 1, least=-(2**31)),
        started=times[0],
        ended=times[1],
        before=admit.whole(before, "seconds of earlier attempts"),
    )


def status_of(files: Files) -> Status | None:
    """status.json, unless it is of an attempt before the newest submission: a resumed run that has not started yet
    still has the status of its previous attempt."""
    if files.status is None:
        return None
    first = files.submitted.first_attempt or 1
    return files.status if (files.status.attempt or 1) >= first else None


def needs_liveness(files: Files) -> bool:
    """Whether the folder alone does not show the state: the run was submitted or has started, and has not ended."""
    status = status_of(files)
    if status is None:
        return files.submission is not None
    return status.state not in FINISHED


def judge(files: Files, liveness: Liveness | None) -> State:
    """The state of a run. `liveness` may be None where `needs_liveness` is false."""
    return _cleaned(_judged(files, liveness))


def _cleaned(state: State) -> State:
    """Reasons come from files and queues, and go to terminals."""
    return state if state.reason.isprintable() else state._replace(reason=admit.clean_lines(state.reason))


def _judged(files: Files, liveness: Liveness | None) -> State:
    if not files.exists:
        return State("lost", "its folder is gone")
    status = status_of(files)
    unreadable = f"{' and '.join(files.damaged)} can't be read" if files.damaged else ""
    if files.submission is None and status is None:
        return State("lost", unreadable or "it was never submitted: the launcher ended before")
    if status is not None and status.state in FINISHED:
        return _finished(files, status)
    if liveness is None:
        return State("unreachable", unreadable or "nothing is known of its processes")
    if status is None:
        return _waiting(files, liveness, unreadable)
    return _running(files, status, liveness)


def judge_anothers(files: Files) -> State:
    """The state of another user's run, from its files alone."""
    status = status_of(files) or Status()
    if status.state in FINISHED:
        return _cleaned(_finished(files, status))
    whose = files.owner.why or f"it is {files.owner.name}'s, and only {files.owner.name} can query its state"
    own_word = f"; its own files say {status.state}" if status.state else ""
    return _cleaned(of_status("unreachable", f"{whose}{own_word}", status))


def _finished(files: Files, status: Status) -> State:
    name, reason = cast(Name, status.state), files.failure or status.reason or ""
    if files.cancelled and name in ("failed", "stopped"):
        # The shell of a cancelled run recorded a child that was killed, or one that stopped on request.
        name, reason = "cancelled", _saved(files) or files.killed or "on request"
    if name in ("stopped", "cancelled"):
        reason = ("" if reason == name else reason) or _saved(files) or files.killed
    return of_status(name, reason, status)


def _waiting(files: Files, liveness: Liveness, unreadable: str) -> State:
    """Of a run that was submitted and has no status yet."""
    if files.cancelled:
        # True at once: nothing starts a run that is marked so.
        return State("cancelled", "before it started")
    if liveness.life == "unknown":
        return State("unreachable", liveness.reason)
    if liveness.life == "alive":
        if unreadable:
            return State("unreachable", unreadable)
        if files.stop:
            return State("stopping", "before it starts")
        return State("suspended" if liveness.suspended else "queued", liveness.reason)
    if files.stop:
        return State("stopped", "before it started")
    if liveness.outcome:
        return State(liveness.outcome, liveness.reason or SILENT)
    return State("lost", unreadable or f"it never started: {liveness.reason}")


def _running(files: Files, status: Status, liveness: Liveness) -> State:
    if liveness.life == "unknown":
        return of_status("unreachable", liveness.reason, status)
    if liveness.waits:
        return of_status("stopping" if files.cancelled else "queued", liveness.reason, status)
    if liveness.life == "alive":
        if status.state == "queued" and not files.cancelled and not files.stop:
            return of_status("queued", status.reason or "", status)
        if files.cancelled or files.stop:
            request = "cancelled" if files.cancelled else "asked to stop"
            return of_status("stopping", f"{request}; {liveness.reason}" if liveness.suspended else request, status)
        return of_status("suspended" if liveness.suspended else "running", liveness.reason, status)
    if files.cancelled:
        return of_status("cancelled", _saved(files) or files.killed or "killed on request", status)
    if files.saved is not None:
        return of_status("stopped", f"{_saved(files)}; {liveness.reason}", status)
    # A run that was ended from outside: the queue's reason, if it gives one, is better than its shell's.
    recorded = (status.reason or "") if status.state == "interrupted" else ""
    if liveness.outcome or recorded:
        reason = (liveness.outcome and liveness.reason) or recorded or "its script was killed"
        if files.stop:
            reason += "; it was asked to stop and did not end in time"
        return of_status(liveness.outcome or "failed", reason, status)
    doing = (status.reason or "waiting") if status.state == "queued" else "running"
    return of_status("lost", f"it was {doing}, and {liveness.reason}", status)


def _saved(files: Files) -> str:
    if files.saved is None:
        return ""
    step = files.saved.step
    why = "time limit" if files.saved.why == "time limit" else "on request"
    if files.saved.saved is False:
        return why
    return f"{why}, saved at step {step}" if step is not None else f"{why}, saved"


def of_status(name: Name, reason: str, status: Status) -> State:
    """A state with what status.json says of its attempt."""
    return State(
        name,
        reason,
        attempt=status.attempt or 0,
        exit_code=status.exit_code,
        started=status.started,
        ended=status.ended,
        before=status.before or 0,
    )
