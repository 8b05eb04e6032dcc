"""Local records of runs on other hosts: a folder for each, with copies of the run's small files.

    STATE/launcher/elsewhere/<run id>/elsewhere.json   the pointer: which host, and where there
    STATE/launcher/elsewhere/<run id>/known.json       the state that the host last reported, and when
    STATE/launcher/elsewhere/<run id>/plan.json ...    copies, as far as transferred

So a remote run is found, listed, watched and reported on as any other; only refreshing its state and acting on it
contact its host. A run that has ended is not asked about again. STATE is $XDG_STATE_HOME, or ~/.local/state.
"""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from launcher import admit
from launcher.admit import Refused
from launcher.errors import UsageError
from launcher.runs import processes, run_roots, store
from launcher.runs.address import Address
from launcher.runs.decode import admitted
from launcher.runs.schema import Identity
from launcher.runs.states import State
from launcher.runs.store import Run

POINTER = store.POINTER
KNOWN = "known.json"
OURS = (POINTER, KNOWN)
"""Our own records of a remote run, which no host writes."""
LOG_LINES = 50
"""Lines of a failed run's log that are kept."""


def _identity(value: Any, what: str) -> Identity | None:
    return processes.from_json(value)


class Pointer(NamedTuple):
    """Where a run is."""

    address: Address
    root: Annotated[str, admit.raw]
    """Its run root there."""
    token: Annotated[str, admit.raw]
    """Of the submission that made it, so that one asked for twice is known to be the same."""
    submitter: Annotated[Identity, _identity] | None = None
    """The launcher that submits the run, until the host has confirmed it."""
    created: Annotated[float, admit.number] = 0.0
    """Seconds since 1970."""
    name: Annotated[str, admit.text] = ""
    """The run's name as submitted, whatever its host has said since."""


class Stamp(NamedTuple):
    """Of a file there."""

    size: Annotated[int, admit.whole]
    changed: Annotated[int, functools.partial(admit.whole, most=admit.LATEST)]
    """In nanoseconds since 1970."""


class Log(NamedTuple):
    """Of a run that failed: the log that says why, and its last lines."""

    path: Annotated[str, admit.text]
    lines: Annotated[tuple[str, ...], admit.list_of(admit.text, LOG_LINES)]


def _stamp(value: Any, what: str) -> Any:
    return value is True or admitted(Stamp, value, what)


class Known(NamedTuple):
    """The state of a run when its host was last asked."""

    state: State
    seen: Annotated[float, admit.number]
    """Seconds since 1970, by this machine's clock."""
    step: Annotated[int, admit.whole] | None = None
    stepped: Annotated[float, admit.number] | None = None
    """When it took that step, by this machine's clock."""
    idle: Annotated[int, admit.whole] | None = None
    """For how many seconds nobody had used what `up` started; 0 while a terminal is open."""
    stamps: Mapping[str, Annotated[Any, _stamp]] = {}
    """Of each file that was copied; true for metrics that were followed."""
    log: Log | None = None


def create(run: str, pointer: Pointer) -> Path:
    """A folder here for a run that is about to be submitted. Raises `FileExistsError` where the name is taken."""
    folder = store.create(Path(run_roots.remote()), run)
    write(folder, pointer)
    return folder


def write(folder: Path, pointer: Pointer, name: str = POINTER) -> None:
    submitter = processes.to_json(pointer.submitter)
    store.write_json(
        folder / name, {"schema": 1, **pointer._asdict(), "address": pointer.address._asdict(), "submitter": submitter}
    )


def read(folder: Path) -> Pointer | None:
    """The pointer in a folder; None where it can't be read, or another user wrote it: it names an SSH configuration,
    which may run commands."""
    values = store.read_or_empty(folder / POINTER, own_in=str(folder.parent))
    try:
        return admitted(Pointer, values, "pointer")
    except Refused:
        return None


def required(run: Run) -> Pointer:
    """The pointer of a remote run. Raises `UsageError` where it can't be read."""
    pointer = read(run.folder)
    if pointer is None:
        raise UsageError(f"{run.id}: the record here of its host can't be read ({run.folder})")
    return pointer


def confirm(folder: Path) -> None:
    """Note that the host has the run. Raises `FileNotFoundError` where its record was removed meanwhile."""
    pointer = read(folder)
    if pointer is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder / POINTER))
    write(folder, pointer._replace(submitter=None))


def known(folder: Path) -> Known | None:
    """The last known state of a run; None where there is none, or where its record is damaged."""
    values = store.read_or_empty(folder / KNOWN)
    try:
        return admitted(Known, values, "what is known")
    except Refused:
        return None


def remember(folder: Path, what: Known) -> None:
    store.write_json(folder / KNOWN, {"schema": 1, **what._asdict()})


def forget_state(folder: Path) -> None:
    """Forget how a run ended, as it was submitted again."""
    before = known(folder)
    stamps = before.stamps if before else {}
    remember(folder, Known(state=State("queued"), seen=time.time(), stamps=stamps))
    store.mark_unfinished(folder.parent, folder.name)


def place(folder: Path) -> str:
    """Where a remote run's folder is, as scp writes it; the folder here if its record can't be read."""
    pointer = read(folder)
    return f"{pointer.address.destination}:{pointer.root}/{folder.name}" if pointer else str(folder)
