"""The folders that runs leave: how they are made, written and read.

    RUN_ROOT/<run id>/           the record of one run: there is no database
    RUN_ROOT/.unfinished/<id>    a marker from submission until someone sees the run finished, so that listing the
                                 unfinished ones opens no old folder
    RUN_ROOT/.sweeps/<id>/       files of a sweep's search, or of its job arrays

Every file has one writer and is written aside and renamed; a file that can't be read counts as damaged, never for
an empty answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from amp_launcher import records
from launcher import admit, safe_files
from launcher.errors import UsageError
from launcher.runs import ownership, run_roots
from launcher.runs.decode import decode
from launcher.runs.schema import Submission

T = TypeVar("T")

SECRETS = ".secrets"
"""Of a run folder: a file for each secret that is kept for the run alone, and goes when it ends."""
VERDICT = "verdict.json"
"""Of a run folder: what Slurm last said of its job, before it forgets that."""
SEARCH = "search.json"
"""Of a sweep's own folder, where that is a search: what continues it, and what its runs are ordered by."""
TRACKER_LOG = "tracker.log"
"""Of a run folder: what the process of `tracker=` prints."""
UNFINISHED = ".unfinished"
SWEEPS = ".sweeps"
POINTER = "elsewhere.json"
"""In the folder that stands here for a run on another host: which host, and where (`remote_record`)."""
COPY = ".elsewhere.json"
"""The same in a folder that `fetch` copied here, which is read and not acted on. No host can send that name."""
ATTEMPT_DIGITS = 6
"""Of the largest number of an attempt."""
ENDED = "ended.json"
"""Of an attempt's folder: status.json as it was at the attempt's end."""
ARMS = "arms"
"""The folder of a comparison that holds its arms."""
FAILED = "failed"
"""Of an arm that is not run again: a file with the reason."""
BLOCK = "block"
"""Of an arm: the number of its newest block, from 0, and of how many; written before the block begins."""


class Run(NamedTuple):
    """One run: its root and its name."""

    root: str
    id: str

    @property
    def folder(self) -> Path:
        return Path(self.root, self.id)

    @property
    def path(self) -> str:
        """The folder as text, which is quicker."""
        return f"{self.root}/{self.id}"


# Making


def create(root: Path, run: str, *, shared: bool = False) -> Path:
    """A new run's folder with its marker, for its user alone, or `shared` for the group of the root to read.

    Raises `FileExistsError` where the name is taken, `UsageError` for a root that can't be shared."""
    folder = root / run
    make_root(root, shared=shared)
    make_folder(folder, shared=shared)
    attempts = folder / "attempts"
    try:
        make_folder(attempts, shared=shared)
        mark_unfinished(root, run)
    except BaseException:
        if attempts.is_dir():
            attempts.rmdir()
        folder.rmdir()
        raise
    return folder


def make_root(root: Path, *, shared: bool = False) -> None:
    """Make a run root where there is none, for its user alone, and give a root of the caller's to its group where it is
    to be `shared`: whoever is in the group may add runs, and nobody may rename those of others.

    Raises `UsageError` for another user's root that isn't set up so."""
    run_roots.make_private(root)
    if not shared or ownership.is_shared(root):
        return
    if not ownership.is_mine(root, str(root)):
        raise UsageError(
            f"share=group: {root} is not set up for a group, and only its owner can do that: chmod 3770 {root}"
        )
    root.chmod(stat.S_IMODE(root.stat().st_mode) & 0o7775 | ownership.SHARED)


def make_folder(folder: Path, *, shared: bool) -> None:
    """Raises `FileExistsError`."""
    records.make_folder(folder)
    if shared:
        folder.chmod(0o2750)


def make_common(folder: Path) -> None:
    """Make a folder of the root that each of its users writes into, where it isn't there. Raises `UsageError` where it
    is another user's alone."""
    with contextlib.suppress(FileExistsError):
        records.make_folder(folder)
        if ownership.is_shared(folder.parent):
            folder.chmod(ownership.SHARED | 0o700)
    if not ownership.is_mine(folder, str(folder.parent)) and not ownership.is_shared(folder):
        raise UsageError(f"{folder} is another user's; name a run_root of your own, or share one with share=group")


def mark_unfinished(root: Path, run: str) -> None:
    make_common(root / UNFINISHED)
    open(root / UNFINISHED / run, "ab", opener=records.private).close()


def clear_unfinished(root: Path, run: str) -> None:
    (root / UNFINISHED / run).unlink(missing_ok=True)


def search_folder(root: str, sweep: str) -> Path:
    """The folder of a sweep for what is none of its runs'."""
    return Path(root, SWEEPS, sweep)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A record of a run: whoever may read its folder may read it."""
    write_text(path, json.dumps(value, indent=1) + "\n", records.record)


def write_text(path: Path, text: str, opener: Callable[[str, int], int] = records.private) -> None:
    write_bytes(path, text.encode(), opener)


def write_bytes(
    path: Path, content: bytes, opener: Callable[[str, int], int] = records.private, *, mode: int = 0
) -> None:
    """Aside first, then renamed, so that a reader sees the old file or the new one. `mode` is added to the opener's."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb", opener=opener) as stream:
            if mode:
                os.fchmod(stream.fileno(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode) | mode)
            stream.write(content)
        os.replace(aside, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # which a write to a full disk doesn't name
        raise
    finally:
        aside.unlink(missing_ok=True)


# Reading


class Damaged(Exception):
    """The file is there and holds no JSON object."""


def read_json(path: str | Path, own_in: str | None = None) -> dict[str, Any] | None:
    """The object in the file; None where there is no file. Raises `Damaged` for anything else in it, and for a file of
    another user where `own_in` names the root in which it has to be the caller's."""
    try:
        # A listing reads tens of thousands: the plain calls take half the time of a file object.
        opened = safe_files.regular(os.fspath(path), os.O_RDONLY)
        try:
            file = os.fstat(opened)
            if own_in is not None and not (owner := ownership.of_uid(file.st_uid, own_in)).mine:
                raise Damaged(f"{path} {ownership.described(owner)}")
            if file.st_size > admit.LARGEST_RECORD:
                raise Damaged(f"{path} has {file.st_size} bytes, more than a record may")
            value = json.loads(os.read(opened, file.st_size).decode())
        finally:
            os.close(opened)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise Damaged(f"{path} holds no JSON object")
    return value


def read_or_empty(path: str | Path, own_in: str | None = None) -> dict[str, Any]:
    """The object in the file; empty where there is none, it can't be read, or isn't the caller's in the root that
    `own_in` names."""
    try:
        return read_json(path, own_in) or {}
    except Damaged:
        return {}


def read(cls: type[T], path: str | Path, only: Collection[str] = (), own_in: str | None = None) -> T:
    """The record in the file, of a type of `schema`; see `decode`."""
    return decode(cls, read_or_empty(path, own_in), only)[0]


def plan_path(folder: str | Path) -> str:
    """The file with the plan that holds now: what the newest resume changed, else the first plan.

    A resume leaves it in `attempts/plan.json`, from where the next attempt takes it into its own folder. A plan whose
    launcher was killed before it submitted the attempt is ignored."""
    numbers, newest = attempts(folder), f"{folder}/attempts/plan.json"
    if os.path.exists(newest):
        first = read(Submission, f"{folder}/submission.json", ("first_attempt",)).first_attempt or 1
        if first > max(numbers, default=0):
            return newest
    paths = (f"{folder}/attempts/{number}/plan.json" for number in reversed(numbers))
    return next(filter(os.path.exists, paths), f"{folder}/plan.json")


def attempts(folder: str | Path) -> list[int]:
    """Numbers of the attempts that left a folder, oldest first; none where that can't be read."""
    try:
        names = os.listdir(f"{folder}/attempts")
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= ATTEMPT_DIGITS)
