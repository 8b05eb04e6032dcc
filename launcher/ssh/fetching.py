"""Bringing the files of runs from their host: what is lacking here, resumed by offset, each file whole or not there."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from launcher import admit
from launcher.admit import Refused
from launcher.errors import LauncherError, UsageError
from launcher.runs import remote_record, store
from launcher.runs.remote_record import Pointer
from launcher.runs.store import Run
from launcher.ssh.failures import BadAnswer, Lost, Unreachable
from launcher.ssh.host import connect
from launcher.ssh.methods import MOST_FILES
from launcher.ssh.remote_status import look_again

PATIENCE = 300.0
"""Seconds for which a host that went silent in the middle is asked again."""
PAUSES = (1.0, 2.0, 5.0, 10.0)


class Wanted(NamedTuple):
    """A file that is asked for, as the host listed it."""

    name: str
    offset: int
    """Bytes of it that are here."""
    size: int
    mtime: int


class Brought(NamedTuple):
    """What a fetch did."""

    files: int
    bytes: int
    gone: tuple[str, ...]
    """Files that were deleted there between listing and reading them: checkpoints of a run that goes on."""


def fetch(run: Run, folder: Path, say: Callable[[str], None]) -> Brought:
    """Bring every file of a run that isn't here as it is there. Raises `LauncherError`; what came is kept.

    A host that was reached and falls silent, or is cut off, is waited for; one that never answered is not.
    """
    pointer = remote_record.of(run.folder)
    if pointer is None:
        raise LauncherError(f"{run.id}: what is known here of where it runs can't be read ({run.folder})")
    total = Brought(0, 0, ())
    deadline, tried, reached = time.monotonic() + PATIENCE, 0, False
    while True:
        try:
            for name, size in _bring(run, pointer, folder):
                if size is None:
                    total = total._replace(gone=(*total.gone, name))
                else:
                    total = total._replace(files=total.files + 1, bytes=total.bytes + size)
                deadline, tried = time.monotonic() + PATIENCE, 0
            return total
        except Unreachable as error:
            reached = reached or isinstance(error, Lost)
            if not reached or isinstance(error, BadAnswer) or time.monotonic() > deadline:
                raise
            if tried == 0:  # once for each time that it falls silent
                say(f"{error}; going on where it was as soon as it answers, for {PATIENCE:.0f} s (Ctrl-C gives up)")
            time.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
            tried += 1


def _bring(run: Run, pointer: Pointer, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The files that were brought, each with the bytes that came, or None where it is gone."""
    look_again(run, pointer)
    _make(folder)
    if folder != run.folder:  # so that what was brought is never taken for a run of this machine
        remote_record.write(folder, pointer, store.COPY)
    host = connect(pointer.address)
    listed = host.ask("contents", _listed, root=pointer.root, id=run.id)
    wanted = [
        Wanted(name, _begun(folder, name, size, mtime), size, mtime)
        for name, size, mtime in listed
        if not _is_here(folder, name, size, mtime)
    ]
    if not wanted:
        return
    answers = host.stream("files", root=pointer.root, id=run.id, wanted=wanted)
    with host.admitting(), contextlib.closing(answers):
        for each in wanted:
            head = admit.group(next(answers, None), "what is told of a file", "name")
            admit.choice(head["name"], "the name of a file", (each.name,))
            if admit.flag(head.get("gone", False), "gone"):
                yield each.name, None
            else:
                yield each.name, _take(folder, each, head, answers)
        if next(answers, None) is not None:
            raise Refused("it sends more files than were asked for")


def _listed(answer: Any) -> list[tuple[str, int, int]]:
    """The files that a run has, by what their host says: name, size, time of change. Raises `Refused`."""
    found = []
    for each in admit.items(answer, "files", MOST_FILES):
        name, *stamp = admit.items(each, "a file", 3, least=3)
        if admit.path(name, "the name of a file").casefold() in remote_record.OURS:
            raise Refused(f"it has a file {name}, which is a record of this machine's")
        found.append((name, *remote_record.admitted_stamp(stamp)))
    return [(name, size, changed) for name, size, changed in found]


def _make(folder: Path) -> None:
    """The folder that a run is brought into. Raises `UsageError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "a link stands in its place")
    except OSError as error:
        raise UsageError(
            f"fetch: {folder} can't be made: {error.strerror}; name with to=FOLDER one that you may write to"
        ) from None


def _take(folder: Path, wanted: Wanted, head: Mapping[str, Any], answers: Iterator[Any]) -> int:
    """One file from the stream of answers: aside, checked, renamed. Gives the bytes that came.

    Raises `Refused`, `LauncherError` where it came damaged, and `OSError`.
    """
    admit.group(head, "what is told of a file", "size", "mtime", "offset")
    size, mtime = remote_record.admitted_stamp([head["size"], head["mtime"]])
    unchanged = (size, mtime) == wanted[2:]
    offset = admit.whole(head["offset"], "where a file begins", most=wanted.offset if unchanged else 0)
    *parts, last = wanted.name.split("/")
    aside = "/".join([*parts, _aside(last, size, mtime)])
    with open(admit.open_in(folder, aside, os.O_RDWR | os.O_CREAT, make=True), "r+b") as out:
        whole = _digest_of(out, offset)
        came, end = 0, None
        for part in answers:
            if not isinstance(part, bytes):
                end = admit.group(part, "the end of a file", "name", "sha256", "short")
                break
            came += len(part)
            if offset + came > size:
                raise Refused(f"{wanted.name} is longer than the {size} bytes that were announced")
            out.write(part)
            whole.update(part)
        if end is None:
            raise Refused(f"{wanted.name} has no end")
        out.truncate()
        os.utime(out.fileno(), ns=(mtime, mtime))
    with admit.parent_in(folder, wanted.name) as (at, _):
        if end["short"] or end["sha256"] != whole.hexdigest():
            os.unlink(_aside(last, size, mtime), dir_fd=at)
            raise LauncherError(f"{last} changed while it was read, or came damaged; fetch again")
        os.replace(_aside(last, size, mtime), last, src_dir_fd=at, dst_dir_fd=at)
        for other in os.listdir(at):
            if other.startswith(f".{last}.") and other.endswith(".part"):
                os.unlink(other, dir_fd=at)
    return came


def _digest_of(out: BinaryIO, offset: int) -> Any:
    """The digest of what is here, and the stream set behind it."""
    whole = hashlib.sha256()
    while out.tell() < offset and (part := out.read(min(2**20, offset - out.tell()))):
        whole.update(part)
    return whole


def _is_here(folder: Path, name: str, size: int, mtime: int) -> bool:
    found = _stat(folder, name)
    return found is not None and (found.st_size, found.st_mtime_ns) == (size, mtime)


def _begun(folder: Path, name: str, size: int, mtime: int) -> int:
    """How much of this very file an earlier fetch brought."""
    *parts, last = name.split("/")
    found = _stat(folder, "/".join([*parts, _aside(last, size, mtime)]))
    return min(size, found.st_size) if found else 0


def _stat(folder: Path, name: str) -> os.stat_result | None:
    """Of a regular file that is there."""
    with contextlib.suppress(OSError), admit.parent_in(folder, name) as (at, last):
        found = os.stat(last, dir_fd=at, follow_symlinks=False)
        return found if stat.S_ISREG(found.st_mode) else None
    return None


def _aside(name: str, size: int, mtime: int) -> str:
    """The name of a file while it is being brought."""
    return f".{name}.{size}-{mtime}.part"
