"""The shared folder of fetched images: files by digest, the digests that names meant, and locks.

sha256-<hex>.sif    a complete image
names/<key>         a link to the image that a name meant when it was pulled last
locks/<key>         held while an image is fetched, by its digest, or by its name into an engine
.part-<key>/        a fetch in progress; a leftover if nobody holds the lock
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_LINK = re.compile(r"\.\./(sha256)-([0-9a-f]{64})\.sif")


def path_of(cache: Path, digest: str) -> Path:
    """Where the image of that digest is, or will be."""
    return cache / f"{digest.replace(':', '-')}.sif"


def key_of(reference: str) -> str:
    """A file name for the name of an image."""
    return hashlib.sha256(reference.encode()).hexdigest()


def lookup(cache: Path, reference: str) -> str:
    """The digest of this name when it was pulled last, or nothing. Asks no registry."""
    link = cache / "names" / key_of(reference)
    try:
        match = _LINK.fullmatch(os.readlink(link)) if _is_trusted(cache, os.lstat(link)) else None
    except OSError:
        return ""
    return f"{match[1]}:{match[2]}" if match else ""


def remember(cache: Path, reference: str, digest: str) -> None:
    """Record the digest of a name."""
    link = _make(cache, "names") / key_of(reference)
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.symlink_to(f"../{path_of(cache, digest).name}")
    aside.replace(link)


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


def untrusted(cache: Path, path: Path) -> str:
    """Why a file of the cache is not trusted, empty if it is. An image runs as the caller, so it has to be a regular
    file of the caller, root, or the owner of the cache. Raises `OSError`."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    if not _is_trusted(cache, status):
        return f"{path} belongs to uid {status.st_uid}, neither you nor the owner of the cache"
    return ""


def is_complete(path: Path) -> bool:
    """Whether a file is a SIF image as long as its header says, as a copy that broke off is not.

    Source: the header of https://github.com/apptainer/sif, whose last two numbers are where the data begins and how
    much there is.
    """
    with open(path, "rb") as stream:
        header, size = stream.read(128), os.fstat(stream.fileno()).st_size
    return header[32:41] == b"SIF_MAGIC" and len(header) == 128 and sum(struct.unpack("<2q", header[112:])) <= size


def _is_trusted(cache: Path, status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0, os.stat(cache).st_uid)


@contextlib.contextmanager
def locked(cache: Path, key: str, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a key; calls `waiting` once if it is taken. Yields the file descriptor: the lock ends with
    the last process that has it. Raises `OSError` on a file system without locks."""
    handle = _lock_file(_make(cache, "locks") / key)
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
def part(cache: Path, key: str) -> Iterator[Path]:
    """An empty private folder for a fetch, deleted afterwards. Needs the key's lock: an existing folder is left
    over from a pull that was killed."""
    folder = cache / f".part-{key}"
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
