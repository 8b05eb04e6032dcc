"""Bringing the files of runs from their host: what is lacking here, resumed by offset, each file whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from launcher.errors import LauncherError, UsageError
from launcher.remote import pointers
from launcher.remote.host import Lost, Unreachable, connect
from launcher.remote.looking import look_again
from launcher.remote.pointers import Pointer
from launcher.runs import Run

PATIENCE = 300.0
"""Seconds for which a host that went silent in the middle is asked again."""
PAUSES = (1.0, 2.0, 5.0, 10.0)


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
    pointer = pointers.of(run.folder)
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
            if not reached or time.monotonic() > deadline:
                raise
            if tried == 0:  # once for each time that it falls silent
                say(f"{error}; going on where it was as soon as it answers, for {PATIENCE:.0f} s (Ctrl-C gives up)")
            time.sleep(PAUSES[min(tried, len(PAUSES) - 1)])
            tried += 1


def _bring(run: Run, pointer: Pointer, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The files that were brought, each with the bytes that came, or None where it is gone."""
    look_again(run, pointer)
    _make(folder)
    host = connect(pointer.address)
    listed = host.ask("contents", root=pointer.root, id=run.id)
    wanted = [
        [name, _begun(folder / name, size, mtime), size, mtime]
        for name, size, mtime in listed
        if not _is_here(folder / name, size, mtime)
    ]
    if not wanted:
        return
    answers = host.stream("files", root=pointer.root, id=run.id, wanted=wanted)
    with contextlib.closing(answers):
        for head in answers:
            if head.get("gone"):
                yield head["name"], None
            else:
                yield head["name"], _take(folder / head["name"], head, answers)


def _make(folder: Path) -> None:
    """The folder that a run is brought into. Raises `UsageError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"fetch: {folder} can't be made: {error.strerror}; name with to=FOLDER one that you may write to"
        ) from None


def _take(path: Path, head: dict[str, Any], answers: Iterator[Any]) -> int:
    """One file from the stream of answers: aside, checked, renamed. Gives the bytes that came."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = _aside(path, head["size"], head["mtime"])
    with open(os.open(aside, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as out:
        whole = _digest_of(out, head["offset"])
        came = 0
        for part in answers:
            if isinstance(part, dict):
                break
            out.write(part)
            whole.update(part)
            came += len(part)
        else:
            raise LauncherError(f"{path.name}: its host stopped in the middle")  # a stream ends with its own word
        out.truncate()
    if part["short"] or part["sha256"] != whole.hexdigest():
        aside.unlink()
        raise LauncherError(f"{path.name} changed while it was read, or came damaged; fetch again")
    os.utime(aside, ns=(head["mtime"], head["mtime"]))
    for other in path.parent.glob(f".{path.name}.*.part"):
        if other != aside:
            other.unlink()
    aside.replace(path)
    return came


def _digest_of(out: BinaryIO, offset: int) -> Any:
    """The digest of what is here, and the stream set behind it."""
    whole = hashlib.sha256()
    while out.tell() < offset and (part := out.read(min(2**20, offset - out.tell()))):
        whole.update(part)
    return whole


def _is_here(path: Path, size: int, mtime: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return (found.st_size, found.st_mtime_ns) == (size, mtime)
    return False


def _begun(path: Path, size: int, mtime: int) -> int:
    """How much of this very file an earlier fetch brought."""
    with contextlib.suppress(FileNotFoundError):
        return min(size, _aside(path, size, mtime).stat().st_size)
    return 0


def _aside(path: Path, size: int, mtime: int) -> Path:
    return path.with_name(f".{path.name}.{size}-{mtime}.part")
