"""The state of a run, from the records in its folder and from what its queue knows of its processes.

Nothing is shown as running that is not, and nothing is lost without a reason. `judge` is pure; `executors.backends`
collects its inputs.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Literal, NamedTuple, cast

from launcher import admit
from launcher.runs import processes
from launcher.runs.run_files import Files
from launcher.runs.schema import Identity, Status
from launcher.runs.store import Run

Name = Literal[
    "queued", "running", "suspended", "stopping", "done", "failed", "stopped", "cancelled", "lost", "unreachable"
]

FINISHED: frozenset[str] = frozenset({"done", "failed", "stopped", "cancelled", "lost"})
"""States that change only by a new submission. An unreachable run may still be running."""


SILENT = "its script did not start, or ended without recording why; see launch.log"
SAVED_FOR = {"time limit": "time limit", "preemption": "preempted", "signal TERM": "signal TERM"}
"""Why a run saved and stopped, as screens show it; for other reasons it was asked to."""


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


LONGEST_REASON = 2000
LARGEST_ATTEMPT = 10**6
Time = Annotated[str, functools.partial(admit.text, most=64)]


class State(NamedTuple):
    """A run's state and the reason for it."""

    name: Name
    reason: Annotated[str, functools.partial(admit.text, most=LONGEST_REASON)] = ""
    attempt: Annotated[int, functools.partial(admit.whole, most=LARGEST_ATTEMPT)] = 0
    """0 before the first one started."""
    exit_code: Annotated[int, functools.partial(admit.whole, most=2**31 - 1, least=-(2**31))] | None = None
    started: Time | None = None
    ended: Time | None = None
    before: Annotated[int, admit.whole] = 0
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


_COMES_AFTER = re.compile(r"waiting for (.+), which it comes after")


def waits_for(state: State) -> list[str]:
    """The runs that a queued run waits for by `after=`, as its script or its scheduler gives the reason."""
    match = _COMES_AFTER.search(state.reason) if state.name == "queued" else None
    return match[1].split(", ") if match else []


def status_of(files: Files) -> Status | None:
    """status.json, unless it is of an attempt before the newest submission: a resumed run that has not started yet
    still has the status of its previous attempt."""
    if files.status is None:
        return None
    first = files.submitted.first_attempt or 1
    return files.status if (files.status.attempt or 1) >= first else None


def may_live(files: Files) -> bool:
    """Whether the run may have processes, or a place in a queue: it was submitted or has started, and has not recorded
    its end."""
    status = status_of(files)
    if status is None:
        return files.submission is not None
    return status.state not in FINISHED


def needs_liveness(files: Files) -> bool:
    """Whether the folder alone does not show the state. That of a run that was cancelled before it started it does:
    nothing starts one that is marked so."""
    return may_live(files) and not (files.cancelled and status_of(files) is None)


def answering(files: Files) -> Identity | None:
    """The run's process: its shell once that has written its status, before that the one that starts it."""
    status = status_of(files) or Status()
    return processes.complete(status.process) or processes.complete(files.submitted.process)


def judge(files: Files, liveness: Liveness | None) -> State:
    """The state of a run. `liveness` may be None where `needs_liveness` is false."""
    status = status_of(files)
    return of_status(*_judged(files, status, liveness), status or Status())


def judge_other_users(files: Files) -> State:
    """The state of another user's run, from its files alone."""
    status = status_of(files) or Status()
    if status.state in FINISHED:
        return of_status(*_finished(files, status), status)
    whose = files.owner.why or f"it is {files.owner.name}'s, and only {files.owner.name} can query its state"
    recorded = f"; its own files say {status.state}" if status.state else ""
    return of_status("unreachable", f"{whose}{recorded}", status)


def _judged(files: Files, status: Status | None, liveness: Liveness | None) -> tuple[Name, str]:
    """The name of the state, and the reason."""
    if not files.exists:
        return "lost", "its folder is gone"
    unreadable = f"{' and '.join(files.damaged)} can't be read" if files.damaged else ""
    if files.submission is None and status is None:
        return "lost", unreadable or "it was never submitted: the launcher ended before"
    if status is not None and status.state in FINISHED:
        return _finished(files, status)
    if status is None and files.cancelled:
        return "cancelled", "before it started"
    if liveness is None:
        return "unreachable", unreadable or "nothing is known of its processes"
    if status is None:
        return _waiting(files, liveness, unreadable)
    return _running(files, status, liveness)


def _finished(files: Files, status: Status) -> tuple[Name, str]:
    name, reason = cast(Name, status.state), status.reason or ""
    if files.failure:  # its shell knows more than it said itself: a lack of memory, why it is not restarted
        reason = files.failure + "".join(reason.partition("; ")[1:])
    if files.cancelled and name in ("failed", "stopped"):
        # The shell of a cancelled run recorded a child that was killed, or one that stopped on request.
        name, reason = "cancelled", _saved(files) or files.killed or "on request"
    if name in ("stopped", "cancelled"):
        reason = ("" if reason == name else reason) or _saved(files) or files.killed
    return name, reason


def _waiting(files: Files, liveness: Liveness, unreadable: str) -> tuple[Name, str]:
    """Of a run that was submitted and has no status yet."""
    if liveness.life == "unknown":
        return "unreachable", liveness.reason
    if liveness.life == "alive":
        if unreadable:
            return "unreachable", unreadable
        if files.stop:
            return "stopping", "before it starts"
        return "suspended" if liveness.suspended else "queued", liveness.reason
    if files.stop:
        return "stopped", "before it started"
    if liveness.outcome:
        return liveness.outcome, liveness.reason or SILENT
    earlier = files.status.state if files.status is not None else None
    before = f"; its attempt before was {earlier}" if earlier in FINISHED else ""
    return "lost", (unreadable or f"it never started: {liveness.reason}") + before


def _running(files: Files, status: Status, liveness: Liveness) -> tuple[Name, str]:
    if liveness.life == "unknown":
        return "unreachable", liveness.reason
    if liveness.waits:
        before = status.reason if status.state in ("requeued", "interrupted") else ""
        return "stopping" if files.cancelled else "queued", "; ".join(filter(None, (before, liveness.reason)))
    if liveness.life == "alive":
        if files.cancelled or files.stop:
            request = "cancelled" if files.cancelled else "asked to stop"
            request += f" for {files.stop_why}" if files.stop_why and not files.cancelled else ""
            return "stopping", f"{request}; {liveness.reason}" if liveness.suspended else request
        if status.state == "queued":
            return "queued", status.reason or ""
        return "suspended" if liveness.suspended else "running", liveness.reason
    if files.cancelled:
        return "cancelled", _saved(files) or files.killed or "killed on request"
    if files.saved is not None:
        return "stopped", f"{_saved(files)}; {liveness.reason}"
    # A run that was ended from outside: the queue's reason, if it gives one, is better than its shell's.
    recorded = (status.reason or "") if status.state == "interrupted" else ""
    if liveness.outcome or recorded:
        reason = (liveness.outcome and liveness.reason) or recorded or "its script was killed"
        if files.stop:
            reason += "; it was asked to stop and did not end in time"
        return liveness.outcome or "failed", reason
    doing = (status.reason or "waiting") if status.state == "queued" else "running"
    return "lost", f"it was {doing}, and {liveness.reason}"


def _saved(files: Files) -> str:
    if files.saved is None:
        return ""
    step = files.saved.step
    why = SAVED_FOR.get(files.saved.why or "", "on request")
    if files.saved.saved is False:
        return why
    return f"{why}, saved at step {step}" if step is not None else f"{why}, saved"


def of_status(name: Name, reason: str, status: Status) -> State:
    """A state with what status.json says of its attempt."""
    return State(
        name,
        reason if reason.isprintable() else admit.clean_lines(reason),  # files and queues give it, terminals get it
        attempt=status.attempt or 0,
        exit_code=status.exit_code,
        started=status.started,
        ended=status.ended,
        before=status.before or 0,
    )
