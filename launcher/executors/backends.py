"""The state of runs wherever they are, and their end. Standard library only: `ls` imports this and no submitit.

A backend is a module with the functions of `Backend`, imported when one of its runs is looked at. Runs on other hosts
are looked at by those hosts, with this same module.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, cast

from launcher.runs import ownership, run_files, run_roots, selection, store
from launcher.runs.run_files import Files
from launcher.runs.states import Liveness, Seen, judge, judge_other_users, needs_liveness
from launcher.runs.store import Run

BACKENDS = {"direct": "launcher.executors.local.backend", "slurm": "launcher.executors.slurm.backend"}
"""`queue` in submission.json -> the backend of the run."""
COPIED = "it is a copy that `fetch` brought; without run_root= the launcher asks the host that the run is on"


class Backend(Protocol):
    """What a backend answers. Keys are folders of runs, so that one question serves any number."""

    def liveness(self, asked: Mapping[str, Files], after: float = 0.0) -> dict[str, Liveness]:
        """What is known of each run that its folder calls unfinished. A scheduler is asked rarely, and its last answer
        is used unless it is older than `after`, in seconds since 1970."""

    def with_processes(self, asked: Mapping[str, Files]) -> set[str]:
        """Those that have live processes, even if their folders call them finished."""

    def end(self, asked: Mapping[str, Files], grace: float) -> dict[str, str]:
        """End all processes of the runs, by KILL after `grace` seconds. Returns the reason for each that could not be
        ended."""


def states_of(wanted: Iterable[Run], *, follow: bool = False, fresh: bool = False) -> list[Seen]:
    """The state of each run, in the same order, by one question to each backend or other host.

    `follow` also copies the metrics of runs on other hosts. `fresh` asks a scheduler now, for callers that act on the
    state: about runs of this machine that have not recorded their end.
    """
    after = time.time() if fresh else 0.0
    wanted = list(dict.fromkeys(wanted))
    far = [run for run in wanted if run_roots.is_remote(run.root)]
    if not far:
        return _look_here(wanted, after)
    from launcher.ssh import remote_status

    near = _look_here((run for run in wanted if not run_roots.is_remote(run.root)), after)
    rows = {row.run: row for row in [*remote_status.states_of_remote(far, follow=follow), *near]}
    return [rows[run] for run in wanted]


def _look_here(wanted: Iterable[Run], after: float = 0.0) -> list[Seen]:
    folders = {run.path: run for run in wanted}
    files = {folder: run_files.load(folder) for folder in folders}
    known: dict[str, Liveness] = {}
    asked = {folder: record for folder, record in files.items() if record.owner.mine and needs_liveness(record)}
    while asked:
        known.update(_liveness(asked, after))
        # A run may have ended, or been resumed, after its files were read. One that is gone writes nothing more, so its
        # files are read again.
        again = {folder: run_files.load(folder) for folder in asked if known[folder].life == "gone"}
        asked = {
            folder: record for folder, record in again.items() if record != files[folder] and needs_liveness(record)
        }
        files.update(again)
    return [_seen(run, files[folder], known.get(folder)) for folder, run in folders.items()]


def _seen(run: Run, files: Files, liveness: Liveness | None) -> Seen:
    if not files.owner.mine:
        return Seen(run, files, judge_other_users(files))
    judged = liveness is not None and needs_liveness(files)  # it may have recorded its end since
    return Seen(run, files, judge(files, liveness), liveness.asked if judged and liveness else None)


def settle(seen: Iterable[Seen]) -> None:
    """Remove the unfinished markers of the caller's runs that have finished."""
    seen = list(seen)
    marked = set(selection.unfinished(dict.fromkeys(row.run.root for row in seen)))
    cleared: list[Run] = []
    for row in seen:
        if not row.files.owner.mine:
            continue
        # A folder with neither submission nor status may be one that is being submitted this moment.
        nothing = row.files.exists and row.files.submission is None and row.files.status is None
        if nothing or not row.state.finished:
            continue
        if row.run in marked:
            # A job that Slurm no longer knows may be in accounts that come late: its end is not known for sure.
            if row.state.name != "lost" or row.files.submitted.queue != "slurm":
                forget_secrets(row.run.folder)
            # A root that can only be read keeps its markers.
            with contextlib.suppress(OSError):
                store.clear_unfinished(Path(row.run.root), row.run.id)
                cleared.append(row.run)
    for row in states_of(cleared):
        if not row.state.finished:  # resumed in between
            store.mark_unfinished(Path(row.run.root), row.run.id)


def forget_secrets(folder: Path) -> None:
    """Delete the secrets of a run that has ended without doing so itself; not those laid down to start it again."""
    import shutil  # which a listing does without

    secrets = folder / store.SECRETS
    with contextlib.suppress(OSError):
        if secrets.lstat().st_mtime_ns <= (folder / "status.json").stat().st_mtime_ns:
            shutil.rmtree(secrets, ignore_errors=True)


def with_processes(files: Mapping[str, Files]) -> set[str]:
    """As `Backend.with_processes`, whatever the runs' backends."""
    return {folder for name, group in _by_backend(files).items() for folder in _backend(name).with_processes(group)}


def end(files: Mapping[str, Files], grace: float) -> dict[str, str]:
    """As `Backend.end`, whatever the runs' backends."""
    groups = _by_backend(files)
    failed = {
        folder: f"its files don't say where it runs{_named(record)}"
        if record.owner.mine
        else ownership.described(record.owner)
        for folder, record in files.items()
        if not any(folder in group for group in groups.values())
    }
    for name, group in groups.items():
        failed.update(_backend(name).end(group, grace))
    return failed


def _liveness(asked: Mapping[str, Files], after: float) -> dict[str, Liveness]:
    known = {
        folder: Liveness("gone", f"this is a copy of {files.copy_of}, made before that ended")
        if files.copy_of
        else Liveness("unknown", f"no queue is known here{_named(files)}")
        for folder, files in asked.items()
    }
    for name, group in _by_backend(asked).items():
        known.update(_backend(name).liveness(group, after))
    return known


def _by_backend(files: Mapping[str, Files]) -> dict[str, dict[str, Files]]:
    groups: dict[str, dict[str, Files]] = {}
    for folder, record in files.items():
        if not record.owner.mine or record.copied or record.copy_of:
            continue  # its files could name a plugin for Slurm's programs to load, or a process of the caller's
        name = record.submitted.queue
        if record.submission is None and record.status and record.status.process:
            name = "direct"  # its launcher was killed between starting it and writing that down
        if name in BACKENDS:
            groups.setdefault(name, {})[folder] = record
    return groups


def _named(files: Files) -> str:
    if files.copied:
        return f": {COPIED}"
    return f" by the name of {files.submitted.queue}" if files.submitted.queue else ""


def _backend(name: str) -> Backend:
    return cast(Backend, importlib.import_module(BACKENDS[name]))
