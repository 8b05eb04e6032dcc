"""How runs elsewhere stand: one question to each host for all of its runs, hosts side by side."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher import human, processes, runs
from launcher.queues import Seen
from launcher.remote import pointers
from launcher.remote.address import Address
from launcher.remote.host import Host, Unreachable, connect
from launcher.remote.pointers import Known, Pointer
from launcher.runs import Run
from launcher.states import State

MAX_HOSTS = 32
"""Hosts asked at once."""
DOUBT = 120.0
"""Seconds in which a request that was cut off may still be carried out over there."""
METRICS = "metrics.jsonl"


def look(wanted: Sequence[Run], *, follow: bool = False) -> list[Seen]:
    """The state of each run, in the same order. `follow` brings what they measured too.

    Of a host that does not answer, the runs are unreachable, with what was known last.
    """
    groups = by_address(run for run in wanted if not is_settled(run, follow))
    found: dict[Run, State] = {}
    if groups:
        with ThreadPoolExecutor(min(len(groups), MAX_HOSTS)) as pool:
            for each in [pool.submit(_ask, address, dict(group), follow) for address, group in groups.items()]:
                found.update(each.result())
    return [Seen(run, runs.load(str(run.folder)), found.get(run) or _remembered(run)) for run in wanted]


def look_again(run: Run, pointer: Pointer) -> None:
    """Look though the last word of the run may be known: files may have changed, or another launcher resumed it.

    Raises `Unreachable`, and then what was known stays known.
    """
    found, _ = _ask_once(connect(pointer.address), {run: pointer}, [run], follow=False)
    if not found[run].finished:
        runs.mark_unfinished(Path(run.root), run.id)


def is_settled(run: Run, follow: bool = False) -> bool:
    """Whether the last word of a run is known here already, and all that is wanted of it."""
    known = pointers.known(run.folder)
    if known is None or not known.state.finished:
        return False
    return not follow or METRICS in known.stamps or known.state.attempt == 0


def _remembered(run: Run) -> State:
    known = pointers.known(run.folder)
    return known.state if known else State("lost", "its pointer here can't be read")


def _ask(address: Address, group: dict[Run, Pointer], follow: bool) -> dict[Run, State]:
    """Ask one host about its runs, and keep what it says."""
    host, rest = connect(address), list(group)
    found: dict[Run, State] = {}
    while rest:
        try:
            answered, rest = _ask_once(host, group, rest, follow)
        except Unreachable as error:
            return found | {run: _unreachable(run, str(error)) for run in rest}
        found.update(answered)
    return found


def _ask_once(
    host: Host, group: Mapping[Run, Pointer], wanted: Sequence[Run], follow: bool
) -> tuple[dict[Run, State], list[Run]]:
    """The states of runs, kept, and those that measured so much that it comes in pieces. Raises `Unreachable`."""
    answers = host.ask("look", runs=[_question(run, group[run], follow) for run in wanted], follow=follow)
    found = {run: _taken(run, group[run], each) for run, each in zip(wanted, answers, strict=True)}
    return found, [run for run, each in zip(wanted, answers, strict=True) if each.get("more")]


def _question(run: Run, pointer: Pointer, follow: bool) -> dict[str, Any]:
    known = pointers.known(run.folder)
    question: dict[str, Any] = {"root": pointer.root, "id": run.id, "stamps": known.stamps if known else {}}
    if follow:
        paths = [run.folder / METRICS, *run.folder.glob(f"{runs.ARMS}/*/{METRICS}")]
        question["metrics"] = {str(path.relative_to(run.folder)): measured(path) for path in paths}
    return question


def measured(path: Path) -> list[Any]:
    """How much of a file is here, and a digest of its end: a run that goes on from a checkpoint cuts its own back."""
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 256))
            return [size, hashlib.sha256(stream.read()).hexdigest()]
    except FileNotFoundError:
        return [0, hashlib.sha256().hexdigest()]


def _taken(run: Run, pointer: Pointer, answer: dict[str, Any]) -> State:
    """Keep what a host said of a run, and give its state."""
    state = State(*answer["state"])
    if not answer["begun"] and pointer.submitter is not None:
        return _undelivered(run, pointer)
    if pointer.submitter is not None:
        confirm(run.folder, pointer)
    before = pointers.known(run.folder)
    stamps = dict(before.stamps if before else {})
    for number in answer["attempts"]:
        (run.folder / "attempts" / str(number)).mkdir(parents=True, exist_ok=True)
    for name, (stamp, text) in answer["files"].items():
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        runs.write_text(run.folder / name, text)
        os.utime(run.folder / name, ns=(stamp[1], stamp[1]))  # so that a fetch knows it again
        stamps[name] = stamp
    for name, (start, text) in answer.get("metrics", {}).items():
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(run.folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
            out.truncate(start)
            out.seek(start)
            out.write(text.encode("utf-8", "surrogateescape"))
        stamps[METRICS] = True
    log = answer.get("log")
    pointers.remember(
        run.folder,
        Known(
            state=state,
            seen=time.time(),
            step=answer["step"],
            stamps=stamps,
            log=(f"{pointer.address.destination}:{log[0]}", tuple(log[1])) if log else None,
        ),
    )
    return state


def confirm(folder: Path, pointer: Pointer) -> None:
    """The host has the run."""
    accepted = Pointer(
        address=pointer.address, root=pointer.root, token=pointer.token, submitter=None, created=pointer.created
    )
    pointers.write(folder, accepted)


def _undelivered(run: Run, pointer: Pointer) -> State:
    """Of a run that its host has not started, and that nobody said it has."""
    where = pointer.address.destination
    if pointer.submitter is not None and processes.is_alive(pointer.submitter):
        return State("queued", f"it is being handed to {where}")
    if time.time() - pointer.created < DOUBT:
        return State("unreachable", f"the connection was cut while it was handed to {where}; ask again in two minutes")
    state = State("lost", f"it never reached {where}: its launcher or the connection ended before")
    pointers.remember(run.folder, Known(state=state, seen=time.time()))
    return state


def _unreachable(run: Run, why: str) -> State:
    known = pointers.known(run.folder)
    if known is None:
        return State("unreachable", why)
    if known.state.finished:  # what it measured was wanted too, but how it ended is known
        return known.state
    ago = human.duration(time.time() - known.seen)
    return known.state._replace(name="unreachable", reason=f"{why.splitlines()[0]}; {known.state.name} {ago} ago")


def by_address(wanted: Iterable[Run]) -> dict[Address, list[tuple[Run, Pointer]]]:
    """Runs elsewhere by their host, with their pointers. Those whose pointer can't be read are left out."""
    groups: dict[Address, list[tuple[Run, Pointer]]] = {}
    for run in wanted:
        pointer = pointers.read(run.folder)
        if pointer is not None:
            groups.setdefault(pointer.address, []).append((run, pointer))
    return groups
