"""Fetching the files of remote runs: what is missing here, resumed by offset, each file complete or absent."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from launcher import admit, safe_files, units, waiting
from launcher.admit import Refused
from launcher.errors import LauncherError, UsageError
from launcher.runs import remote_record, store
from launcher.runs.decode import admitted
from launcher.runs.remote_record import Pointer, Stamp
from launcher.runs.store import Run
from launcher.ssh.failures import Lost, Retries, Unreachable
from launcher.ssh.host import connect
from launcher.ssh.methods import MOST_FILES
from launcher.ssh.remote_status import look_again


class Progress:
    def __init__(self, run: str) -> None:
        self.run, self.files, self.here, self.bytes, self.total = run, 0, 0, 0, 0

    def __str__(self) -> str:
        if not self.files:
            return f"{self.run}: asking for its files"
        return f"{self.run}: {self.here} of {self.files} files, {units.size(self.bytes)} of {units.size(self.total)}"

    def counted(self, answers: Iterator[Any]) -> Iterator[Any]:
        for answer in answers:
            self.bytes += len(answer) if isinstance(answer, bytes) else 0
            yield answer


class Fetched(NamedTuple):
    files: int
    bytes: int
    gone: tuple[str, ...]
    """Files that were deleted there between listing and reading them: checkpoints of a live run."""


def fetch(run: Run, folder: Path, say: Callable[[str], None]) -> Fetched:
    """Fetch every file of a run that is missing or different here, again after a lost connection, unless the host has
    never answered. Raises `LauncherError`; what arrived is kept."""
    pointer, progress = remote_record.required(run), Progress(run.id)
    total, retries, reached = Fetched(0, 0, ()), Retries(), False
    with waiting.shown(lambda: str(progress)):
        while True:
            try:
                for name, size in _fetch(run, pointer, folder, progress):
                    if size is None:
                        total = total._replace(gone=(*total.gone, name))
                    else:
                        total = total._replace(files=total.files + 1, bytes=total.bytes + size)
                    retries.begin_anew()
                return total
            except Unreachable as error:
                reached = reached or isinstance(error, Lost)
                if not reached:
                    raise
                retries.wait(error, say)


def _fetch(run: Run, pointer: Pointer, folder: Path, progress: Progress) -> Iterator[tuple[str, int | None]]:
    """The fetched files with the bytes that were sent, or None for a file that is gone."""
    look_again(run, pointer)
    _make(folder)
    if folder != run.folder:  # marks it as a copy, never a run of this machine
        remote_record.write(folder, pointer, store.COPY)
    host = connect(pointer.address)
    here: dict[_Listed, int] = {}
    for file in host.ask("contents", _listed, root=pointer.root, id=run.id):
        local = _stat(folder, file.name)
        if local is None or (local.st_size, local.st_mtime_ns) != file[1:]:
            begun = _stat(folder, _aside(*file))
            here[file] = min(file.size, begun.st_size) if begun else 0
    if not here:
        return
    progress.files, progress.here, progress.bytes = len(here), 0, 0
    progress.total = sum(file.size - offset for file, offset in here.items())
    wanted = [(file.name, offset, file.size, file.mtime) for file, offset in here.items()]
    stream = host.stream("files", root=pointer.root, id=run.id, wanted=wanted)
    answers = progress.counted(stream)
    with host.admitting(), contextlib.closing(stream):
        for file, offset in here.items():
            head = admit.group(next(answers, None), "an answer about a file", "name")
            admit.choice(head["name"], "the name of a file", (file.name,))
            if admit.flag(head.get("gone", False), "gone"):
                yield file.name, None
            else:
                yield file.name, _receive(folder, file, offset, head, answers)
            progress.here += 1
        if next(answers, None) is not None:
            raise Refused("it sends more files than were requested")


def _name(value: Any, what: str) -> str:
    """Raises `Refused`."""
    if admit.path(value, what).casefold() in remote_record.OURS:
        raise Refused(f"it has a file {value}, which is a record of this machine's")
    return str(value)


class _Listed(NamedTuple):
    """A file of a run, in its host's list."""

    name: Annotated[str, _name]
    size: Annotated[int, admit.whole]
    mtime: Annotated[int, functools.partial(admit.whole, most=admit.LATEST)]


def _listed(answer: Any) -> tuple[_Listed, ...]:
    """Raises `Refused`."""
    return admit.list_of(functools.partial(admitted, _Listed), MOST_FILES)(answer, "files")


def _make(folder: Path) -> None:
    """The folder that a run is fetched into. Raises `UsageError`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise OSError(errno.ELOOP, "a link stands in its place")
    except OSError as error:
        raise UsageError(
            f"fetch: {folder} can't be made: {error.strerror}; name a folder that you may write to with to=FOLDER"
        ) from None


def _receive(folder: Path, wanted: _Listed, here: int, head: Mapping[str, Any], answers: Iterator[Any]) -> int:
    """Receive one file, of which so many bytes are `here`: written aside, checked, renamed. Returns how many were sent.
    Raises `Refused`, `LauncherError` for a damaged file, and `OSError`."""
    admit.group(head, "an answer about a file", "size", "mtime", "offset")
    size, mtime = admitted(Stamp, [head["size"], head["mtime"]], "a file")
    unchanged = (size, mtime) == wanted[1:]
    offset = admit.whole(head["offset"], "where a file begins", most=here if unchanged else 0)
    aside = _aside(wanted.name, size, mtime)
    with open(safe_files.open_in(folder, aside, os.O_RDWR | os.O_CREAT, make=True), "r+b") as out:
        digest = _digest_of(out, offset)
        received, end = 0, None
        for part in answers:
            if not isinstance(part, bytes):
                end = admit.group(part, "the end of a file", "name", "sha256", "short")
                break
            received += len(part)
            if offset + received > size:
                raise Refused(f"{wanted.name} is longer than the {size} bytes that were announced")
            out.write(part)
            digest.update(part)
        if end is None:
            raise Refused(f"{wanted.name} has no end")
        out.truncate()
        os.utime(out.fileno(), ns=(mtime, mtime))
    with safe_files.parent_in(folder, wanted.name) as (at, last):
        partial = os.path.basename(aside)
        if end["short"] or end["sha256"] != digest.hexdigest():
            os.unlink(partial, dir_fd=at)
            raise LauncherError(f"{last} changed while it was read, or was damaged on the way; fetch again")
        os.replace(partial, last, src_dir_fd=at, dst_dir_fd=at)
        for other in os.listdir(at):
            if other.startswith(f".{last}.") and other.endswith(".part"):
                os.unlink(other, dir_fd=at)
    return received


def _digest_of(out: BinaryIO, offset: int) -> Any:
    """The digest of the first `offset` bytes; the stream is left behind them."""
    digest = hashlib.sha256()
    while out.tell() < offset and (part := out.read(min(2**20, offset - out.tell()))):
        digest.update(part)
    return digest


def _stat(folder: Path, name: str) -> os.stat_result | None:
    """None if there is no such regular file."""
    with contextlib.suppress(OSError), safe_files.parent_in(folder, name) as (at, last):
        status = os.stat(last, dir_fd=at, follow_symlinks=False)
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def _aside(name: str, size: int, mtime: int) -> str:
    """The path of a file while it is being received."""
    parent, slash, last = name.rpartition("/")
    return f"{parent}{slash}.{last}.{size}-{mtime}.part"
