"""Local records of runs on other hosts: a folder for each, with copies of the run's small files.

    STATE/launcher/elsewhere/<run id>/elsewhere.json   the pointer: which host, and where there
    STATE/launcher/elsewhere/<run id>/known.json       the state that the host last reported, and when
    STATE/launcher/elsewhere/<run id>/plan.json ...    copies, as far as transferred

So a remote run is found, listed, watched and reported on as any other; only refreshing its state and acting on it
contact its host. A run that has ended is not asked about again. STATE is $XDG_STATE_HOME, or ~/.local/state.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher import admit
from launcher.admit import Refused
from launcher.errors import UsageError
from launcher.runs import address as addresses
from launcher.runs import processes, run_roots, states, store
from launcher.runs.address import Address
from launcher.runs.schema import Identity
from launcher.runs.states import State
from launcher.runs.store import Run

POINTER = store.POINTER
KNOWN = "known.json"
OURS = (POINTER, KNOWN)
"""Our own records of a remote run, which no host writes."""
LOG_LINES = 50
"""Lines of a failed run's log that are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointer:
    """Where a run is."""

    address: Address
    root: str
    """Its run root there."""
    token: str
    """Of the submission that made it, so that one asked for twice is known to be the same."""
    submitter: Identity | None = None
    """The launcher that submits the run, until the host has confirmed it."""
    created: float = 0.0
    """Seconds since 1970."""
    name: str = ""
    """What the run was called when it was submitted, whatever its host says of it since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The state of a run when its host was last asked."""

    state: State
    seen: float
    """Seconds since 1970, by this machine's clock."""
    step: int | None = None
    stepped: float | None = None
    """When it took that step, by this machine's clock."""
    stamps: Mapping[str, Any] = field(default_factory=dict)
    """Of each file that was copied, its size and time of change there."""
    log: tuple[str, tuple[str, ...]] | None = None
    """Of a run that failed: the log that says why, and its last lines."""


def create(run: str, pointer: Pointer) -> Path:
    """A folder here for a run that is about to be submitted. Raises `FileExistsError` where the name is taken."""
    folder = store.create(Path(run_roots.remote()), run)
    write(folder, pointer)
    return folder


def write(folder: Path, pointer: Pointer, name: str = POINTER) -> None:
    submitter = processes.to_json(pointer.submitter)
    store.write_json(folder / name, {"schema": 1, **dataclasses.asdict(pointer), "submitter": submitter})


def read(folder: Path) -> Pointer | None:
    """The pointer in a folder; None where it can't be read, or another user wrote it: it names an SSH configuration,
    which may run commands."""
    values = store.read_or_empty(folder / POINTER, own_in=str(folder.parent))
    try:
        admit.group(values, "pointer", "address", "root", "token", "created")
        return Pointer(
            address=addresses.from_json(values["address"]),
            root=admit.raw(values["root"], "root", admit.LONGEST_TEXT),
            token=admit.raw(values["token"], "token", admit.LONGEST_TEXT),
            submitter=processes.from_json(values.get("submitter")),
            created=admit.number(values["created"], "created"),
            name=admit.text(values.get("name", ""), "name"),
        )
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
    write(folder, dataclasses.replace(pointer, submitter=None))


def known(folder: Path) -> Known | None:
    """The last known state of a run; None where there is none, or where its record is damaged."""
    values = store.read_or_empty(folder / KNOWN)
    try:
        admit.group(values, "what is known", "state", "seen")
        return Known(
            state=states.admitted(values["state"]),
            seen=admit.number(values["seen"], "seen"),
            step=admitted_step(values.get("step")),
            stepped=None if values.get("stepped") is None else admit.number(values["stepped"], "stepped"),
            stamps={name: _stamp(stamp) for name, stamp in admit.group(values.get("stamps"), "stamps").items()},
            log=admitted_log(values.get("log")),
        )
    except Refused:
        return None


def admitted_step(value: Any) -> int | None:
    """Raises `Refused`."""
    return None if value is None else admit.whole(value, "a step")


def admitted_log(value: Any) -> tuple[str, tuple[str, ...]] | None:
    """Where a log is, and its last lines. Raises `Refused`."""
    if value is None:
        return None
    path, last = admit.items(value, "a log", 2, least=2)
    lines = (admit.text(line, "a line of a log") for line in admit.items(last, "lines of a log", LOG_LINES))
    return admit.text(path, "the path of a log"), tuple(lines)


def admitted_stamp(value: Any) -> list[int]:
    """The size and time of change, in nanoseconds, of a file there. Raises `Refused`."""
    size, changed = admit.items(value, "a stamp", 2, least=2)
    return [admit.whole(size, "a size"), admit.whole(changed, "a time of change", admit.LATEST)]


def _stamp(value: Any) -> Any:
    return value if value is True else admitted_stamp(value)


def remember(folder: Path, what: Known) -> None:
    store.write_json(folder / KNOWN, {"schema": 1, **dataclasses.asdict(what)})


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
