"""Removing the folders of runs of this machine that have ended, and what only they needed."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from launcher.code import code_store, uv_environment
from launcher.errors import LauncherError, UsageError
from launcher.executors import backends, stopping, trash
from launcher.runs import ownership, run_ids, run_roots, selection, store
from launcher.runs.schema import PlanRecord
from launcher.runs.store import Run

PATIENCE = 90.0
"""Seconds in which Slurm has to end jobs that were killed: between TERM and KILL it gives them its KillWait."""


def remove(
    chosen: Sequence[Run],
    force: bool,
    *,
    now: bool = False,
    say: Callable[[Run], None] = lambda _: None,
) -> None:
    """Move the folders of runs, records of remote ones, to the trash, or delete them `now`, with what their sweeps have
    beside the last of them, and delete what was in the trash for a week. Raises `LauncherError` where a run of this
    machine has not ended, unless `force` ends it; then nothing is removed."""
    ownership.refuse_other_users("rm", chosen)
    local = [run for run in chosen if not run_roots.is_remote(run.root)]
    _end(local, force)
    old = [run for root in sorted({run.root for run in chosen}) for run in trash.expired(root)]
    code, moment = _code_of([*local, *old]), trash.moment()
    if now:
        trash.side_by_side(delete, chosen, say)
    else:
        for run in chosen:
            check_run_folder(run)
            trash.put(run, moment)
            store.clear_unfinished(Path(run.root), run.id)
            say(run)
    trash.delete(old)
    _prune(code)
    _forget_sweeps(chosen)


def _end(chosen: Sequence[Run], force: bool) -> None:
    """Make sure that nothing writes into the folders. Raises `LauncherError` before anything is deleted."""
    alive = stopping.unended(backends.states_of(chosen, fresh=True))
    if not alive:
        return
    if not force:
        states = ", ".join(f"{row.run.id} ({row.state.name})" for row in alive)
        raise UsageError(f"rm: not ended yet: {states}; `cancel` them first, or rm --force")
    ended = stopping.cancel([row.run for row in alive], now=True, say=lambda text: print(text, file=sys.stderr))
    deadline = time.monotonic() + PATIENCE
    for (run, _, state, _), why_not in ended:
        while state.name == "stopping" and not why_not and time.monotonic() < deadline:
            time.sleep(2.0)
            ((_, _, state, _),) = backends.states_of([run], fresh=True)
        if why_not or not state.finished:
            reason = why_not or state.reason or state.name
            raise LauncherError(f"rm: {run.id} is kept: {reason}; if that can't be true any more, delete {run.folder}")


def empty(roots: Sequence[str]) -> list[tuple[str, int]]:
    """Delete what is in the trashes of run roots, the code that only that needed, and environments that no run needs:
    these with their bytes."""
    old = [run for root in roots for run in trash.runs_in(root)]
    code = _code_of(old)
    trash.delete(old)
    _prune(code)
    return [environment for root in roots for environment in _prune_environments(root)]


def _prune_environments(root: str) -> Iterator[tuple[str, int]]:
    for place in ownership.own_folders(root, uv_environment.FOLDER):
        for name in uv_environment.unused(place, lambda name: bool(_named(root, [name], attempts=True))):
            folder = place / name
            size = trash.size_of(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            (place / f"{name}.log").unlink(missing_ok=True)
            if folder.exists():
                print(f"rm: {folder} could not be deleted; see who owns what is in it", file=sys.stderr)
            else:
                yield str(folder), size


def check_run_folder(run: Run) -> None:
    """Raises `LauncherError` for anything that is no run folder."""
    # With a name of the form of a run id it is an entry of the root itself; a link is not followed.
    if not run_ids.is_id(run.id) or run.folder.is_symlink() or not run.folder.is_dir():
        raise LauncherError(f"rm: {run.folder} is no run folder")


def delete(run: Run) -> None:
    """Delete one run's folder and its marker. Raises `LauncherError` for anything that is no run folder."""
    check_run_folder(run)
    try:
        shutil.rmtree(run.folder)
    except OSError as error:
        raise LauncherError(f"rm: {run.folder} could not be deleted: {error}") from None
    store.clear_unfinished(Path(run.root), run.id)


def _code_of(chosen: Iterable[Run]) -> set[tuple[str, str]]:
    """Run roots and digests of the code snapshots that the runs name; those in a trash name the code of its root."""
    named = ((trash.root_of(run), store.read(PlanRecord, run.folder / "plan.json", ("code",)).code) for run in chosen)
    return {(root, digest) for root, digest in named if digest is not None and re.fullmatch(r"[0-9a-f]{64}", digest)}


def _prune(code: Iterable[tuple[str, str]]) -> None:
    """Delete those of the caller's snapshots that no plan names and no terminal is open in."""
    digests: dict[str, set[str]] = {}
    for root, digest in code:
        digests.setdefault(root, set()).add(digest)
    for root, of_root in digests.items():
        for place in code_store.folders(root):
            code_store.prune(place, of_root, functools.partial(_needed, root, place))


def _needed(root: str, place: Path, digests: Collection[str]) -> set[str]:
    needed = _named(root, digests)
    for digest in sorted({*digests} - needed):
        if code_store.is_open(place / digest):
            print(f"rm: the code in {place / digest} is kept: a `shell` is open in it", file=sys.stderr)
            needed.add(digest)
    return needed


def _named(root: str, names: Collection[str], *, attempts: bool = False) -> set[str]:
    """Those of these snapshots or environments that plans of the caller's name, with `attempts` those of attempts
    too."""
    named: set[str] = set()
    for run in [*(Run(root, run) for run in selection.run_names(root)), *trash.runs_in(root)]:
        if not ownership.is_mine(run.path, root):  # other users run their own
            continue
        for plan in (run.folder / "plan.json", *(run.folder.glob("attempts/*/plan.json") if attempts else ())):
            with contextlib.suppress(FileNotFoundError):  # deleted, or made this moment
                text = plan.read_bytes()
                named.update(name for name in names if name.encode() in text)
    return named


def _forget_sweeps(deleted: Iterable[Run]) -> None:
    """Delete what sweeps have beside their runs, of those that have none left."""
    for root, sweep in {(run.root, sweep) for run in deleted if (sweep := run_ids.sweep_of(run.id))}:
        folder = store.search_folder(root, sweep)
        if ownership.is_mine(folder, root) and not selection.sweep_runs(root, sweep):
            shutil.rmtree(folder, ignore_errors=True)
