"""Files in folders that other users, or answers of other machines, may have shaped: no link is followed, nothing but a
regular file is opened.

Standard library only: both sides of a connection use it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from launcher.admit import Refused

LARGEST_FILE = 64 * 2**20
"""Bytes of a file of a run that are read at once."""


def open_in(folder: Path, name: str, flags: int = os.O_RDONLY, *, make: bool = False) -> int:
    """A descriptor of a regular file inside a folder, by its relative path. `make` makes the folders that lead to it.

    The folder itself is the caller's and may be reached through links; below it no link is followed. Raises `OSError`,
    and `Refused` for a path that leads out of the folder.
    """
    with parent_in(folder, name, make=make) as (at, last):
        try:
            opened = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=at)
        except OSError as error:
            raise _named(error, folder / name) from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", str(folder / name))
    return opened


def regular(path: str, flags: int) -> int:
    """An opener for `open` that accepts only regular files and follows no link in the last component: another user may
    have put a pipe or a device there. Raises `OSError`."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return opened


def read_text(path: Path, most: int = LARGEST_FILE) -> str:
    """The text of a regular file, at most its first `most` bytes. Raises `OSError`."""
    with open(path, "rb", opener=regular) as stream:
        return stream.read(most).decode("utf-8", "replace")


def changed(path: Path | str) -> float:
    """When a file was last written, in seconds since 1970; 0 where there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def write_in(folder: Path, name: str, content: bytes, *, modified: int | None = None) -> None:
    """Write a file inside a folder: aside first, then renamed. `modified` is its time of change, in nanoseconds.

    A link of that name is replaced, not followed. Raises as `open_in` does.
    """
    with parent_in(folder, name, make=True) as (at, last):
        aside = f".{last}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=at)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(aside, flags, 0o600, dir_fd=at), "wb") as out:
                out.write(content)
                out.flush()
                if modified is not None:
                    os.utime(out.fileno(), ns=(modified, modified))
            os.replace(aside, last, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=at)
            raise _named(error, folder / name) from None


def make_in(folder: Path, name: str) -> None:
    """Make a folder inside a folder, parents included. Raises as `open_in` does."""
    with parent_in(folder, f"{name}/*", make=True):
        pass


@contextlib.contextmanager
def parent_in(folder: Path, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that holds the file of that relative path, and the file's own name.

    Raises as `open_in` does.
    """
    *parts, last = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in (*parts, last)):
        raise Refused(f"{name[:60]!a} is no path inside {folder}")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    at = os.open(folder, flags)
    try:
        for part in parts:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=at)
                inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=at)
            except OSError as error:
                raise _named(error, folder / name) from None
            os.close(at)
            at = inner
        yield at, last
    finally:
        os.close(at)


def _named(error: OSError, path: Path) -> OSError:
    """The error with the full path, and in words if a link is the reason."""
    why = "a link stands in its place" if error.errno in (errno.ELOOP, errno.EMLINK) else error.strerror
    return type(error)(error.errno, why, str(path))
