"""Where snapshots of the code lie, each in a folder that its digest names: the caller's alone, and checked when used.

    RUN_ROOT/.code/<digest>/          the files; `.names` lists them, since a job may write more beside them; an empty
                                      file `__pycache__` in each folder keeps Python from writing there
    RUN_ROOT/.code/.<digest>.shell-*  held locked by a terminal that is open in it

In a root that a group shares each user has a folder of their own, `.code-<uid>`: whoever may write where the code lies
decides what runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from amp_launcher import records
from launcher import safe_files
from launcher.code import snapshot
from launcher.errors import UsageError
from launcher.runs import ownership

FOLDER = ".code"
NAMES = ".names"
"""Of a snapshot: the names of its files, as a JSON list."""
_checked: set[tuple[str, int, int]] = set()
"""Snapshots that this process has checked, by path, device and inode: nobody else can write into them."""


def folders(root: str | Path) -> list[Path]:
    """The folders of the caller's snapshots in a run root, those that are there."""
    return ownership.own_folders(str(root), FOLDER)


def is_folder(name: str) -> bool:
    """Whether a folder of that name in a run root holds snapshots."""
    return re.fullmatch(rf"{re.escape(FOLDER)}(-\d+)?", name) is not None


def is_there(place: Path, digest: str) -> bool:
    """Whether the snapshot is there. Raises `UsageError` for one that may not be used."""
    target = place / digest
    if not os.path.lexists(target):
        return False
    check_snapshot(target)
    return True


def check_snapshot(target: Path) -> None:
    """Refuse a snapshot that isn't the caller's alone, or doesn't match its digest. Raises `UsageError`."""
    root = str(target.parent.parent)
    try:
        status = os.lstat(target)
        _check_folder(target.parent, root)
        _check_folder(target, root)
        if (key := (str(target), status.st_dev, status.st_ino)) in _checked:
            return
        _check_owners(target, root)
        held = files(target)
        intact = all(stat.S_ISREG(os.lstat(file).st_mode) for file in held.values())
    except (FileNotFoundError, ValueError, TypeError):
        intact, held = False, {}
    except OSError as error:
        raise UsageError(f"the code snapshot {target} can't be used: {error.strerror}: {error.filename}") from None
    if not intact or snapshot.digest_of(held) != target.name:
        raise UsageError(
            f"the code snapshot {target} does not match its digest: it was changed after it was written. Delete that "
            "folder and run the command again"
        )
    _close(target, held)
    _checked.add(key)


def _close(target: Path, files: Iterable[str]) -> None:
    """Keep Python from compiling modules into the snapshot, which no digest covers: on a full disk it leaves a part of
    a file behind that later runs read."""
    for folder in {os.path.dirname(f"{target}/{name}") for name in files}:
        with contextlib.suppress(OSError):  # as on a disk that is full, or mounted for reading alone
            Path(folder, "__pycache__").touch(0o400)


def make(place: Path) -> None:
    """Make the folder of snapshots, for the caller alone. Raises `UsageError` where it is another user's."""
    with contextlib.suppress(FileExistsError):
        records.make_folder(place)
    _check_folder(place, str(place.parent))
    if stat.S_IMODE(place.stat().st_mode) & 0o077:
        place.chmod(0o700)  # what lies in it already is checked when it is used


def _check_folder(folder: Path, root: str) -> None:
    """Raises `UsageError` for a folder of another user, or a link."""
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise UsageError(f"{folder} is not a folder")
    owner = ownership.of(folder, root)
    if not owner.mine:
        whose = owner.why or f"it belongs to {owner.name}, who could put other code there"
        raise UsageError(f"{folder} can't hold the code of your runs: {whose}. Name a run_root of your own")


def files(target: Path) -> dict[str, Path]:
    """The files of a snapshot by name, as it was laid down."""
    return {str(name): target / str(name) for name in json.loads(safe_files.read_text(target / NAMES))}


def _check_owners(folder: Path, root: str) -> None:
    """Raises `UsageError` for anything in the folder that another user made."""
    for entry in os.scandir(folder):
        owner = ownership.of_uid(entry.stat(follow_symlinks=False).st_uid, root)
        if not owner.mine:
            raise UsageError(
                f"{entry.path} {ownership.described(owner)}: the code in {folder} is not run. Delete it, or name "
                "another run_root"
            )
        if entry.is_dir(follow_symlinks=False):
            _check_owners(Path(entry.path), root)


def store(place: Path, digest: str, files: Mapping[str, Path]) -> Path:
    """Lay the snapshot into `<place>/<digest>`, once, and give its folder.

    Raises `UsageError` if a file changed since its digest was taken, since what would run is not what was planned, and
    where the folder is another user's.
    """
    target = place / digest
    make(place)
    if is_there(place, digest):
        return target
    staging = target.with_name(f".{digest}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        records.make_folder(staging)
        for name, path in files.items():
            copy = staging / name
            make_parents(staging, name)
            try:
                shutil.copyfile(path, copy)
            except FileNotFoundError:
                raise UsageError(f"{path} went away while the code was copied; run the command again") from None
            copy.chmod(0o500 if snapshot.is_executable(path) else 0o400)
        if snapshot.digest_of({name: staging / name for name in files}) != digest:
            last = max(files, key=lambda name: safe_files.changed(files[name]))
            raise UsageError(
                f"the code changed while it was copied ({last} was written last): run the command again, or list the "
                "file in .gitignore if it is something that a run writes"
            )
        (staging / NAMES).write_text(json.dumps(sorted(files)), encoding="ascii")
        (staging / NAMES).chmod(0o400)
        _close(staging, files)
        try:
            staging.rename(target)
        except OSError:
            if not is_there(place, digest):  # another launcher laid the same snapshot first
                raise
    finally:
        if staging.is_dir():
            shutil.rmtree(staging, ignore_errors=True)
    return target


def make_parents(folder: Path, name: str) -> None:
    """Make the folders inside `folder` that lead to the file of that relative path, for the caller alone."""
    for parent in reversed(Path(name).parents[:-1]):
        with contextlib.suppress(FileExistsError):
            records.make_folder(folder / parent)


def prune(place: Path, digests: Collection[str], needed: Callable[[Collection[str]], Collection[str]]) -> None:
    """Take away those snapshots that are no longer needed.

    Without a lock: they are set aside before it is asked for a second time. A run that names one later finds it missing
    and lays it down anew; one that was named in between is put back.
    """
    aside: dict[str, Path] = {}
    for digest in {*digests}.difference(needed(digests)):
        gone = place / f".{digest}.{os.getpid()}.gone"
        with contextlib.suppress(OSError):  # gone, or another person's
            aside[digest] = (place / digest).rename(gone)
    for digest in needed(aside) if aside else ():
        with contextlib.suppress(OSError):  # it was laid down anew meanwhile
            aside[digest].rename(place / digest)
    for gone in aside.values():
        shutil.rmtree(gone, ignore_errors=True)


def mark(snapshot: str, token: str) -> str:
    """The file that a terminal in this snapshot holds locked while it is open; `*` as a token stands for any."""
    place, _, digest = snapshot.rpartition("/")
    return f"{place}/.{digest}.shell-{token}"


def is_open(snapshot: Path) -> bool:
    """Whether a terminal is open in this snapshot: one that holds the lock on its mark. Marks of others are deleted."""
    locked = False
    for path in snapshot.parent.glob(os.path.basename(mark(str(snapshot), "*"))):
        try:
            with open(path, "ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:  # it is locked; or nobody can say, on a file system without locks
            locked = True
    return locked
