"""The names that runs were given, which only their plans have.

    STATE/launcher/names/<root>   what was read before: a line for each run of the caller's with its id, its folder's
                                  inode and its name as JSON; <root> is a digest of the run root's path

The name in a plan never changes, so each plan is read once. The name of a run on another host is in its pointer here.
The file is no record: without it, or where it is damaged or old, the plans are read, and it is written again once many
runs are not in it. STATE is as in `run_roots`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

from launcher import safe_files
from launcher.runs import ownership, run_roots
from launcher.runs.schema import PlanRecord, PointerRecord
from launcher.runs.store import COPY, POINTER, Run, read, write_text

MANY = 500
"""Runs that are read each time before they are written down: it takes less than a tenth of a second."""


class Names:
    """The runs of some roots by name: those that the caller gave it, and those of which others say so.

    `roots` has the runs of each, with the inodes of their folders."""

    def __init__(self, roots: Mapping[str, Mapping[str, int]]) -> None:
        self._own: dict[str, dict[str, None]] = {}
        self._given: dict[str, dict[str, None]] = {}
        for root, folders in roots.items():
            self._add(root, folders)

    def own(self, text: str) -> list[str]:
        return list(self._own.get(json.dumps(text), ()))

    def given(self, text: str) -> list[str]:
        return list(self._given.get(json.dumps(text), ()))

    def _add(self, root: str, folders: Mapping[str, int]) -> None:
        written, known, learned = _read(root), dict[str, str](), 0
        for run, folder in folders.items():
            key = f"{run} {folder}"
            if name := written.get(key):
                known[key] = name
                self._own.setdefault(name, {})[run] = None
                continue
            text, is_own = _name_of(Run(root, run))
            if not text:
                continue
            name = json.dumps(text)
            (self._own if is_own else self._given).setdefault(name, {})[run] = None
            if is_own:
                known[key] = name
                learned += 1
        if learned >= MANY:
            _write(root, known)


def _name_of(run: Run) -> tuple[str | None, bool]:
    """The name that a run was given, and whether the caller's own records say so.

    The plan of a run on another host is a copy, which that host may change: the pointer has the name as it was typed.
    """
    copied = run_roots.is_remote(run.root)
    if copied and (name := read(PointerRecord, f"{run.path}/{POINTER}", own_in=run.root).name):
        return name, True
    is_own = not copied and ownership.is_mine(run.path, run.root) and not os.path.exists(f"{run.path}/{COPY}")
    return read(PlanRecord, f"{run.path}/plan.json", ("name",), own_in=run.root if is_own else None).name, is_own


# The file: the version of its form with a checksum of its lines, and the lines


def _path(root: str) -> Path:
    return Path(run_roots.state_folder(), "names", hashlib.sha256(os.fsencode(root)).hexdigest()[:16])


def _read(root: str) -> dict[str, str]:
    """By `<id> <inode>` the names, as JSON; empty where the file is not there, or not as it was written."""
    try:
        checksum, _, text = safe_files.read_text(_path(root)).partition("\n")
    except OSError:
        return {}
    if checksum != _checksum(text):
        return {}
    return {f"{run} {folder}": name for run, folder, name in (line.split(" ", 2) for line in text.splitlines())}


def _write(root: str, known: Mapping[str, str]) -> None:
    text = "".join(f"{key} {name}\n" for key, name in known.items())
    with contextlib.suppress(OSError):  # a disk that is full, or can only be read: the plans are read again
        run_roots.make_private(_path(root).parent)
        write_text(_path(root), f"{_checksum(text)}\n{text}")


def _checksum(text: str) -> str:
    return f"1 {zlib.crc32(text.encode()):08x}"
