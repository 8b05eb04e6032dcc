"""Which files around a script are what runs leave, and no part of its code."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.code import exclusions, snapshot

MAX_FILES = 20_000
"""Of a script's code."""
BEING_WRITTEN = "being written"


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file of a script's code."""

    path: Path
    status: os.stat_result
    wanted: bool
    """git tracks it, or `script.include` names it, or it is the script."""


def size_of(files: Mapping[str, File]) -> int:
    return sum(file.status.st_size for file in files.values())


def is_too_much(files: Mapping[str, File]) -> bool:
    return size_of(files) > snapshot.MAX_BYTES or len(files) > MAX_FILES


def found_in(files: Mapping[str, File], root: Path) -> dict[str, str]:
    """The names of files to leave out, each with the reason where it is not its size: what is being written, what looks
    like a result, and of what is too much the newest."""
    free = {name: file for name, file in files.items() if not file.wanted and file.path.suffix != ".py"}
    written = _being_written(root)
    out = {name: BEING_WRITTEN for name, file in free.items() if (file.status.st_dev, file.status.st_ino) in written}
    out |= {name: "" for name, file in free.items() if exclusions.is_result(file.path.name, file.status.st_size)}
    by_top: dict[str, dict[str, File]] = {}
    for name, file in free.items():
        if name not in out and not exclusions.is_code(name, file.status.st_size):
            by_top.setdefault(name.partition("/")[0], {})[name] = file
    heavy = [some for some in by_top.values() if size_of(some) * 20 > snapshot.MAX_BYTES or len(some) * 20 > MAX_FILES]
    # What runs wrote is newer than what they read.
    for some in sorted(heavy, key=lambda some: max(file.status.st_mtime for file in some.values()), reverse=True):
        if not is_too_much({name: file for name, file in files.items() if name not in out}):
            break
        out |= dict.fromkeys(some, "")
    return out


def in_words(files: Mapping[str, File], left_out: Mapping[str, str]) -> dict[str, str]:
    """Each file that is left out, or its folder where there are several, with its size or why it is left out."""
    by_top: dict[str, list[str]] = {}
    for name in left_out:
        by_top.setdefault(name.partition("/")[0], []).append(name)
    described = {}
    for top, names in by_top.items():
        size = f"{sum(files[name].status.st_size for name in names) / 2**20:,.0f} MiB"
        alone = len(names) == 1
        described[names[0] if alone else top] = (
            (left_out[names[0]] or size) if alone else f"{size} in {len(names):,} files"
        )
    return described


def _being_written(root: Path) -> set[tuple[int, int]]:
    """Device and inode of the files in a folder that a process of this user has open for writing, as `tee train.log`
    has: they are output, and change with every line."""
    written = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.lstat(link).st_mode & stat.S_IWUSR and root in Path(os.readlink(link)).parents:
                status = os.stat(link)
                written.add((status.st_dev, status.st_ino))
    return written
