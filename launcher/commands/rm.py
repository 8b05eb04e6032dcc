"""`rm`: delete the folders of runs that have ended."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.code import code_store
from launcher.commands.arguments import Parser, all_runs, found, split
from launcher.errors import LauncherError, UsageError
from launcher.executors import backends, stopping
from launcher.runs import ownership, run_ids, store
from launcher.runs.store import Run


def main(arguments: list[str]) -> int:
    description = "Delete the folders of runs that have ended. Nothing is asked."
    parser = Parser("rm", "[--force] [--forget] RUN|SWEEP ...", description)
    parser.add_argument("--force", action="store_true", help="end first, at once, what has not ended")
    parser.add_argument(
        "--forget", action="store_true", help="of runs on a host that is no more: delete what is known of them here"
    )
    options = parser.parse_intermixed_args(arguments)
    names, roots = split(options.words)
    if not names:
        raise UsageError("rm: name the runs or sweeps to delete (`ls` lists them)")
    what = found(names, roots)
    chosen = all_runs(what)
    ownership.refuse_anothers("rm", chosen)
    far = [run for run in chosen if store.is_elsewhere(run.root)]
    if far and not options.forget:
        from launcher.ssh import actions

        actions.remove(far, options.force)
    near = [run for run in chosen if not store.is_elsewhere(run.root)]
    if near and options.forget:
        raise UsageError(f"rm --forget: {near[0].id} is a run of this machine; leave --forget out")
    _end(near, options.force)
    code = _code_of(near)
    for run in chosen:
        delete(run)
        print(f"{run.id}  {'forgotten' if options.forget else 'deleted'}")
    _prune(code)
    _forget_sweeps(chosen, roots, [each.sweep for each in what])
    return 0


def remove_here(chosen: Sequence[Run], force: bool) -> None:
    """Delete runs of this machine, and the records of sweeps that have none left. Raises `LauncherError`, and then
    nothing is deleted."""
    ownership.refuse_anothers("rm", chosen)
    _end(chosen, force)
    code = _code_of(chosen)
    for run in chosen:
        delete(run)
    _prune(code)
    _forget_sweeps(chosen, sorted({run.root for run in chosen}), ())


def _end(chosen: Sequence[Run], force: bool) -> None:
    """Make sure that nothing writes into the folders any more. Raises before anything is deleted."""
    alive = stopping.unended(backends.look(chosen, fresh=True))
    if not alive:
        return
    if not force:
        states = ", ".join(f"{each.run.id} ({each.state.name})" for each in alive)
        raise UsageError(f"rm: not ended yet: {states}; `cancel` them first, or rm --force")
    ended = stopping.cancel(
        [each.run for each in alive], now=True, say=lambda text: print(text, file=sys.stderr, flush=True)
    )
    for (run, _, state, _), why_not in ended:
        if why_not or not state.finished:
            reason = why_not or state.reason or state.name
            raise LauncherError(f"rm: {run.id} is kept: {reason}; if that can't be true any more, delete {run.folder}")


def delete(run: Run) -> None:
    """Delete one run's folder, and its marker after it. Raises `LauncherError` for anything that isn't one."""
    folder, root = run.folder, Path(run.root)
    # The name has the form of a run id, so this is an entry of the root itself; a link is not followed.
    if not run_ids.is_id(run.id) or folder.parent != root or folder.is_symlink() or not folder.is_dir():
        raise LauncherError(f"rm: {folder} is no run folder")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise LauncherError(f"rm: {folder} could not be deleted: {error}") from None
    store.clear_unfinished(root, run.id)


def _code_of(chosen: Sequence[Run]) -> dict[str, set[str]]:
    """Digests of the code snapshots that the runs name, by run root."""
    found: dict[str, set[str]] = {}
    for run in chosen:
        digest = store.read_known(run.folder / "plan.json").get("code")
        if isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest):
            found.setdefault(run.root, set()).add(digest)
    return found


def _prune(code: Mapping[str, set[str]]) -> None:
    """Delete those of the caller's snapshots that no run's plan names any more, and that no terminal is open in."""
    for root, digests in code.items():
        for place in code_store.folders(root):
            code_store.prune(place, digests, functools.partial(_is_needed, root, place))


def _is_needed(root: str, place: Path, digest: str) -> bool:
    if _is_named(root, digest):
        return True
    if code_store.is_open(place / digest):
        print(f"rm: the code in {place}/{digest[:8]}... is kept: a `shell` is open in it", file=sys.stderr)
        return True
    return False


def _is_named(root: str, digest: str) -> bool:
    for name in store.run_names(root):
        if not ownership.is_mine(f"{root}/{name}", root):  # others run their own
            continue
        try:
            if digest.encode() in Path(root, name, "plan.json").read_bytes():
                return True
        except FileNotFoundError:  # deleted, or made this moment
            continue
    return False


def _forget_sweeps(deleted: Sequence[Run], roots: Sequence[str], sweeps: Sequence[str | None]) -> None:
    """Delete the records of sweeps that have no run left: those named, and those of the deleted runs."""
    named = {*sweeps, *(run_ids.sweep_of(run.id) for run in deleted)}
    for root in roots:
        for sweep in named - {None}:
            record = f"{root}/{store.SWEEPS}/{sweep}.json"
            if ownership.is_mine(record, root) and not store.sweep_runs(root, str(sweep)):
                os.unlink(record)
