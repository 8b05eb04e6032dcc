"""The names that runs were given, which only their plans have; that of a run on another host is in its pointer here."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping

from launcher import safe_files
from launcher.runs import ownership, remote_record, run_roots
from launcher.runs.run_ids import Named
from launcher.runs.schema import PlanRecord
from launcher.runs.store import COPY, POINTER, Run, read

_AT_ONCE = 16
"""Files that are read side by side: a shared file system takes a millisecond for each."""


def find(text: str, roots: Mapping[str, Iterable[str]]) -> Named:
    """Those runs that have the text as their name; `roots` has the runs of each."""
    from concurrent.futures import ThreadPoolExecutor  # and logging, which a listing does without

    quoted, own, given = json.dumps(text).encode(), list[str](), list[str]()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for root, names in roots.items():
            file = POINTER if run_roots.is_remote(root) else "plan.json"
            runs = [Run(root, name) for name in names]
            holding = pool.map(lambda run, file=file: _holds(f"{run.path}/{file}", quoted), runs)
            for run in itertools.compress(runs, holding):  # a third of what reading it takes
                name, is_own = _name_of(run)
                if name == text:
                    (own if is_own else given).append(run.id)
    return Named(own, given)


def _holds(path: str, text: bytes) -> bool:
    with contextlib.suppress(OSError), open(path, "rb", opener=safe_files.regular) as stream:
        return text in stream.read(safe_files.LARGEST_FILE)
    return False


def _name_of(run: Run) -> tuple[str | None, bool]:
    """The name that a run was given, and whether the caller's own records say so: a plan of another host may change,
    and the pointer does not."""
    if run_roots.is_remote(run.root):
        pointer = remote_record.read(run.folder)
        return pointer and pointer.name, True
    is_own = ownership.is_mine(run.path, run.root) and not os.path.exists(f"{run.path}/{COPY}")
    return read(PlanRecord, f"{run.path}/plan.json", ("name",), own_in=run.root if is_own else None).name, is_own
