"""The states of remote runs: one request to each host for all of its runs, hosts in parallel.

Answers are checked run by run (`status_answer`). Only requested files are written, by their exact names, inside the
run's folder here. A host that gives no valid answer costs its own runs their newest state and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher import admit, safe_files, units
from launcher.admit import Refused
from launcher.errors import LauncherError
from launcher.runs import processes, remote_record, run_files, store
from launcher.runs.address import Address
from launcher.runs.remote_record import POINTER, Known, Pointer
from launcher.runs.schema import PlanRecord
from launcher.runs.states import Seen, State
from launcher.runs.store import Run
from launcher.ssh.failures import Unreachable
from launcher.ssh.host import Host, connect
from launcher.ssh.methods import METRICS
from launcher.ssh.status_answer import Answer, admitted

MAX_HOSTS = 32
"""Hosts in parallel."""
DOUBT = 120.0
"""Seconds in which a request may still be carried out there after its connection was cut."""
PIECE = 0.2
"""Seconds of one wait for the next answer."""
LONGEST_LOOK = 120.0
"""Seconds for which one look repeats its request to a host that always has more."""


class Reply(NamedTuple):
    """What a host answered about a run."""

    state: State
    asked: float | None = None
    """When the scheduler there was asked about it, by the clock here."""
    more: bool = False
    """There is more than fits into one answer."""


def states_of_remote(wanted: Sequence[Run], *, follow: bool = False) -> list[Seen]:
    """The state of each run, in the same order; of a host that does not answer, the last known. `follow` brings their
    metrics too."""
    groups = by_address(run for run in wanted if not is_settled(run, follow))
    replies: dict[Run, Reply] = {}
    if groups:
        for answered in _each(lambda address: _ask(address, dict(groups[address]), follow), list(groups)):
            replies.update(answered)
    rows = ((run, replies.get(run) or Reply(_remembered(run, follow))) for run in wanted)
    return [Seen(run, run_files.load(str(run.folder)), reply.state, reply.asked) for run, reply in rows]


def _each(ask: Callable[[Address], dict[Run, Reply]], addresses: Sequence[Address]) -> Iterator[dict[Run, Reply]]:
    """What each host answers, as it comes. Ctrl-C, and the end of the process, wait for none of them."""
    waiting: queue.SimpleQueue[Address] = queue.SimpleQueue()
    answers: queue.SimpleQueue[dict[Run, Reply] | BaseException] = queue.SimpleQueue()
    for address in addresses:
        waiting.put(address)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                address = waiting.get_nowait()
                try:
                    answers.put(ask(address))
                except BaseException as error:
                    answers.put(error)

    for _ in range(min(len(addresses), MAX_HOSTS)):
        threading.Thread(target=work, daemon=True).start()
    for _ in addresses:
        answer = _next(answers)
        if isinstance(answer, BaseException):
            raise answer
        yield answer


def _next(answers: queue.SimpleQueue[dict[Run, Reply] | BaseException]) -> dict[Run, Reply] | BaseException:
    """Wait in pieces: any thread may receive the signal of Ctrl-C, and only a return to Python raises it here."""
    while True:
        with contextlib.suppress(queue.Empty):
            return answers.get(timeout=PIECE)


def look_again(run: Run, pointer: Pointer) -> None:
    """Look even if the run is known to have ended: files may have changed, or another launcher resumed it. Raises
    `LauncherError`, and then nothing changes."""
    ((_, reply),) = _replies(connect(pointer.address), {run: pointer}, [run], False)
    if not reply.state.finished:
        store.mark_unfinished(Path(run.root), run.id)


def is_settled(run: Run, follow: bool = False) -> bool:
    """Whether the final state of a run is known here, and with `follow` its metrics."""
    known = remote_record.known(run.folder)
    if known is None or not known.state.finished:
        return False
    return not follow or METRICS in known.stamps or known.state.attempt == 0


def _remembered(run: Run, follow: bool) -> State:
    known = remote_record.known(run.folder)
    if known and is_settled(run, follow):
        return known.state
    return _unreachable(run, f"{POINTER} in {run.folder}, which says where it is, can't be read")


def _ask(address: Address, group: dict[Run, Pointer], follow: bool) -> dict[Run, Reply]:
    """Raises nothing: a bad host must not affect others."""
    rest, replies, until = list(group), dict[Run, Reply](), time.monotonic() + LONGEST_LOOK
    while rest and time.monotonic() < until:
        try:
            for run, reply in _replies(connect(address), group, rest, follow, until):
                replies[run] = reply
        except (LauncherError, OSError) as error:
            return {run: Reply(_unreachable(run, str(error))) for run in rest} | replies
        rest = [run for run in rest if replies[run].more]
    return replies


def _replies(
    host: Host, group: Mapping[Run, Pointer], wanted: Sequence[Run], follow: bool, until: float = math.inf
) -> Iterator[tuple[Run, Reply]]:
    """Ask for the states of runs once, and keep each answer. Raises `LauncherError`."""
    questions = [_question(run, group[run], follow) for run in wanted]
    answers = host.stream("look", runs=questions, follow=follow)
    with host.admitting(), contextlib.closing(answers):
        for run, question in zip(wanted, questions, strict=True):
            if time.monotonic() > until:
                raise Unreachable(f"{host.address.destination} has not answered about all runs in {LONGEST_LOOK:.0f} s")
            reply = _kept(run, group[run], admitted(next(answers, None), question, follow))
            # The plan, which names the arms, may have arrived just now.
            yield run, reply._replace(more=reply.more or question["arms"] != _arms(run))
        if next(answers, None) is not None:
            raise Refused("it answers about more runs than it was asked about")


def _question(run: Run, pointer: Pointer, follow: bool) -> dict[str, Any]:
    known, arms = remote_record.known(run.folder), _arms(run)
    question: dict[str, Any] = {
        "root": pointer.root,
        "id": run.id,
        "stamps": known.stamps if known else {},
        "arms": arms,
    }
    if follow:
        names = [METRICS, *(f"{store.ARMS}/{arm}/{METRICS}" for arm in arms)]
        question["metrics"] = {name: measured(run.folder, name) for name in names}
    return question


def _arms(run: Run) -> list[str]:
    """The folders of the arms of a comparison, as its plan names them."""
    plan = store.read(PlanRecord, run.folder / "plan.json", ("arms",))
    return [arm.arm for arm in plan.arms if admit.is_name(arm.arm)]


def measured(folder: Path, name: str) -> list[Any]:
    """The size of a file here, and a digest of its end: a resumed run cuts its metrics back to the checkpoint."""
    try:
        with open(safe_files.open_in(folder, name), "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 256))
            return [size, hashlib.sha256(stream.read()).hexdigest()]
    except OSError:
        return [0, hashlib.sha256().hexdigest()]


def _kept(run: Run, pointer: Pointer, answer: Answer | str) -> Reply:
    if isinstance(answer, str):
        return Reply(_unreachable(run, answer))
    state = answer.state
    try:
        if not answer.begun and pointer.submitter is not None:
            state = _undelivered(run, pointer)
        else:
            _keep(run.folder, pointer, answer)
    except OSError as error:
        state = _unreachable(run, f"what is known of it can't be kept here: {error.strerror}: {error.filename}")
    return Reply(state, None if answer.age is None else time.time() - answer.age, answer.more)


def _keep(folder: Path, pointer: Pointer, answer: Answer) -> None:
    if pointer.submitter is not None:
        remote_record.confirm(folder)
    before = remote_record.known(folder)
    stamps: dict[str, Any] = dict(before.stamps if before else {})
    for number in set(answer.attempts).difference(store.attempts(folder)):
        safe_files.make_in(folder, f"attempts/{number}")
    for name, (stamp, content) in answer.files.items():
        safe_files.write_in(folder, name, content, modified=stamp.changed)  # so that a fetch knows it again
        stamps[name] = stamp
    for name, (start, content) in answer.metrics.items():
        with open(safe_files.open_in(folder, name, os.O_WRONLY | os.O_CREAT, make=True), "wb") as out:
            out.truncate(start)
            out.seek(start)
            out.write(content)
        stamps[METRICS] = True
    log = answer.log._replace(path=f"{pointer.address.destination}:{answer.log.path}") if answer.log else None
    now = time.time()
    stepped = None if answer.step_age is None else now - answer.step_age
    known = Known(
        state=answer.state,
        seen=now,
        step=answer.step,
        stepped=stepped,
        idle=answer.idle,
        stamps=stamps,
        log=log,
    )
    remote_record.remember(folder, known)


def _undelivered(run: Run, pointer: Pointer) -> State:
    """The state of a run that its host does not have, and was never confirmed to have."""
    where = pointer.address.destination
    if pointer.submitter is not None and processes.is_alive(pointer.submitter):
        return State("queued", f"it is being submitted to {where}")
    if time.time() - pointer.created < DOUBT:
        return State(
            "unreachable", f"the connection was cut while it was submitted to {where}; ask again in two minutes"
        )
    state = State("lost", f"it never reached {where}: its launcher or the connection ended before")
    remote_record.remember(run.folder, Known(state=state, seen=time.time()))
    return state


def _unreachable(run: Run, why: str) -> State:
    why = admit.clean_lines(why)
    known = remote_record.known(run.folder)
    if known is None:
        return State("unreachable", why)
    if known.state.finished:  # only its metrics are missing
        return known.state
    ago = units.duration(time.time() - known.seen)
    first, _, _ = why.partition("\n")
    return known.state._replace(name="unreachable", reason=f"{first}; {known.state.name} {ago} ago")


def by_address(wanted: Iterable[Run]) -> dict[Address, list[tuple[Run, Pointer]]]:
    """Remote runs by their host, with their pointers. Runs with an unreadable pointer are left out."""
    groups: dict[Address, list[tuple[Run, Pointer]]] = {}
    for run in wanted:
        pointer = remote_record.read(run.folder)
        if pointer is not None:
            groups.setdefault(pointer.address, []).append((run, pointer))
    return groups
