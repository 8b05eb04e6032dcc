"""The shared folder of fetched images: files by digest, the digests that names meant, and locks.

sha256-<hex>.sif          an image, whole, as soon as it is there
names/<hex of name>.json  which digest a name meant when it was pulled last
locks/<hex>               held by who fetches that digest
.part-<hex>/              what is being fetched; a leftover once nobody holds the lock
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SUFFIXES = {"apptainer": ".sif", "pyxis": ".sqsh"}


def path_of(cache: Path, digest: str, kind: str) -> Path:
    """Where the image of that digest is, or will be, for a runtime that runs files."""
    return cache / f"{digest.replace(':', '-')}{SUFFIXES[kind]}"


def lookup(cache: Path, reference: str) -> str:
    """The digest that this name meant when it was pulled last, or nothing. Asks no registry."""
    try:
        return str(json.loads(_name(cache, reference).read_text(encoding="utf-8"))["digest"])
    except FileNotFoundError:
        return ""


def remember(cache: Path, reference: str, digest: str) -> None:
    """Record what a name means now."""
    record = {"schema": 1, "reference": reference, "digest": digest, "time": time.time()}
    write(_name(cache, reference), record)


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record), encoding="utf-8")
    aside.replace(path)


@contextlib.contextmanager
def locked(cache: Path, digest: str, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of a digest; calls `waiting` once if somebody else has it. Gives the file descriptor that holds it:
    the lock ends with the last process that has it, however that ends. Raises `OSError` on a file system without locks.
    """
    path = cache / "locks" / digest.partition(":")[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


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
    """Remove a folder with what an unpacked image holds, unwritable folders included."""
    for inner, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)


def _name(cache: Path, reference: str) -> Path:
    return cache / "names" / f"{hashlib.sha256(reference.encode()).hexdigest()}.json"
