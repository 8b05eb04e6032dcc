"""The shared folder of fetched images: files by digest, the digests that names meant, and locks.

sha256-<hex>.sif          a complete image
names/<hex of name>.json  the digest of a name when it was pulled last
locks/<hex>               held while that digest is fetched
.part-<hex>/              a fetch in progress; a leftover if nobody holds the lock
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
    """The digest of this name when it was pulled last, or nothing. Asks no registry."""
    try:
        with open(_name(cache, reference), "rb", opener=_opener(cache)) as stream:
            digest = json.loads(stream.read(_LARGEST_RECORD))["digest"]
    except (FileNotFoundError, PermissionError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(digest) if _DIGEST.fullmatch(str(digest)) else ""


def remember(cache: Path, reference: str, digest: str) -> None:
    """Record the digest of a name."""
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
    """Why a file of the cache is not trusted, empty if it is. An image runs as the caller, so it has to be a regular
    file of the caller, root, or the owner of the cache. Raises `OSError`."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    if status.st_uid not in (os.geteuid(), 0, os.stat(cache).st_uid):
        return f"{path} belongs to uid {status.st_uid}, neither you nor the owner of the cache"
    return ""


def _opener(cache: Path) -> Callable[[str, int], int]:
    """An opener for `open`: follows no link, waits for no pipe, and opens trusted files only."""

    def opened(path: str, flags: int) -> int:
        if why := stranger(cache, Path(path)):
            raise PermissionError(errno.EPERM, why, path)
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)

    return opened


@contextlib.contextmanager
def locked(cache: Path, digest: str, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a digest; calls `waiting` once if it is taken. Yields the file descriptor: the lock ends with
    the last process that has it. Raises `OSError` on a file system without locks."""
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
    """Open or make the file, which stays empty. Raises `OSError` for anything but a regular file."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except PermissionError:  # another user's, in a shared cache: readers can lock too, but not over NFS
        handle = os.open(path, os.O_RDONLY | flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


@contextlib.contextmanager
def part(cache: Path, digest: str) -> Iterator[Path]:
    """An empty private folder for a fetch, deleted afterwards. Needs the digest's lock: an existing folder is left
    over from a pull that was killed."""
    folder = cache / f".part-{digest.partition(':')[2]}"
    remove(folder)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with an unpacked image, unwritable folders included. Of a link, only the link."""
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
