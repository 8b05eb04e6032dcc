"""The shared folder of fetched images: files by digest, the digests that names meant, and locks.

sha256-<hex>.sif          an image, whole, as soon as it is there
names/<hex of name>.json  which digest a name meant when it was pulled last
locks/<hex>               held by who fetches that digest
.part-<hex>/              what is being fetched; a leftover once nobody holds the lock
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LARGEST_RECORD = 2**16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
SUFFIXES = {"apptainer": ".sif", "pyxis": ".sqsh"}


def path_of(cache: Path, digest: str, kind: str) -> Path:
    """Where the image of that digest is, or will be, for a runtime that runs files."""
    return cache / f"{digest.replace(':', '-')}{SUFFIXES[kind]}"


def lookup(cache: Path, reference: str) -> str:
    """The digest that this name meant when it was pulled last, or nothing. Asks no registry."""
    try:
        with open(_name(cache, reference), "rb", opener=_opener(cache)) as stream:
            digest = json.loads(stream.read(_LARGEST_RECORD))["digest"]
    except (FileNotFoundError, PermissionError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(digest) if _DIGEST.fullmatch(str(digest)) else ""


def remember(cache: Path, reference: str, digest: str) -> None:
    """Record what a name means now."""
    record = {"schema": 1, "reference": reference, "digest": digest, "time": time.time()}
    _make(cache, "names")
    path = _name(cache, reference)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as stream:
        stream.write(json.dumps(record))
    aside.replace(path)


def make_cache(cache: Path) -> None:
    """Make the cache and its parents where they are missing: writable for their owner alone, at every umask. Raises
    `OSError`."""
    for folder in (*reversed(cache.parents), cache):
        if not folder.exists():
            folder.mkdir(mode=0o755, exist_ok=True)


def _make(cache: Path, name: str) -> Path:
    """A folder in the cache, made where it is missing: writable for whoever may write to the cache. Raises `OSError`
    where a link stands in its place."""
    make_cache(cache)
    folder = cache / name
    folder.mkdir(mode=0o755 | (cache.stat().st_mode & 0o022), exist_ok=True)
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "a link stands in the place of a folder", str(folder))
    return folder


def publish(image: Path, target: Path) -> str:
    """Move a fetched image to its place. Nobody else may write to it: it runs as the caller."""
    image.chmod(stat.S_IMODE(image.stat().st_mode) & ~0o022)
    image.replace(target)
    return str(target)


def stranger(cache: Path, path: Path) -> str:
    """Why a file of the cache is not to be trusted, empty if it is: an image runs as the caller, so it has to belong to
    them, to root, or to whose the whole cache is, and no link may stand in its place. Raises `OSError`."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a regular file"
    if found.st_uid not in (os.geteuid(), 0, os.stat(cache).st_uid):
        return f"{path} belongs to uid {found.st_uid}, who is neither you nor whose the folder is"
    return ""


def _opener(cache: Path) -> Callable[[str, int], int]:
    """For `open`: follows no link, waits for no pipe, and takes files that `stranger` has nothing against."""

    def opened(path: str, flags: int) -> int:
        if why := stranger(cache, Path(path)):
            raise PermissionError(errno.EPERM, why, path)
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    return opened


@contextlib.contextmanager
def locked(cache: Path, digest: str, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a digest; calls `waiting` once if somebody else has it. Gives the file descriptor that holds it:
    the lock ends with the last process that has it, however that ends. Raises `OSError` on a file system without locks.
    """
    handle = _lock_file(_make(cache, "locks") / digest.partition(":")[2])
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)


def _lock_file(path: Path) -> int:
    """Open the file, which is never written, or make it. Raises `OSError` for anything in its place that isn't one."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except PermissionError:  # another user's, in a shared cache: the lock holds for a reader too, but not over NFS
        handle = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


@contextlib.contextmanager
def part(cache: Path, digest: str) -> Iterator[Path]:
    """A folder for what is being fetched, empty and the user's alone, gone afterwards. Needs the digest's lock: then
    what lies there is left over from a pull that was killed."""
    folder = cache / f".part-{digest.partition(':')[2]}"
    remove(folder)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with what an unpacked image holds, unwritable folders included. Of a link, the link alone."""
    if folder.is_symlink():
        with contextlib.suppress(OSError):
            folder.unlink()
        return
    for inner, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _name(cache: Path, reference: str) -> Path:
    return cache / "names" / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"
