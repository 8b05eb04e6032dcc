"""A submission on the host: assemble the code snapshot, make the run folders, start each run once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.code import code_store
from launcher.config import job_environment
from launcher.errors import UsageError, of_system
from launcher.executors import execute, submission
from launcher.executors.ssh.message import unpacked
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.runs import ownership, store
from recipes import records

SNAPSHOTS = 5
"""Number of earlier snapshots whose files need not be sent again."""
SUBMITTING = ".submitting"
"""Folder of a run root with a lock for each submission in progress."""


def lacking(folder: str, files: Mapping[str, str]) -> list[str]:
    """Names of those files of a snapshot, given with their SHA-256, that no earlier snapshot has. Raises `UsageError`
    if the snapshot is there and may not be used."""
    if code_store.is_there(Path(folder).parent, Path(folder).name):
        return []
    there = _there(Path(folder).parent)
    return [name for name, digest in files.items() if digest not in there]


def lay_code(data: bytes) -> None:
    """Assemble a snapshot without a run, for `shell`."""
    message, code, _ = unpacked(data)
    root = Path(message["root"])
    try:
        store.make_root(root, shared=message["shared"])
        _lay_snapshot(Path(message["folder"]), message, code)
    except OSError as error:
        raise UsageError(f"run_root={root}: {of_system(error, root)}") from None


def submit(data: bytes) -> list[str]:
    """Make run folders and start the runs. An earlier try of the same submission is not repeated.

    Raises `LauncherError` if the queue refuses; then nothing is left.
    """
    message, code, secrets = unpacked(data)
    asked = [record.from_json(plan) for plan in message["plans"]]
    root = Path(asked[0].run_root)
    came_from = message["came_from"]
    try:
        store.make_root(root, shared=asked[0].shared is not None)
        with _alone(Path(asked[0].own_folder(SUBMITTING)), came_from["token"]):
            new = [plan for plan in asked if not _is_done(root / plan.run_id, came_from["token"])]
            if new:
                _lay_snapshot(Path(new[0].code_dir), message, code)
                _start(root, new, message, secrets)
    except OSError as error:
        raise UsageError(f"run_root={root}: {of_system(error, root)}") from None
    return [plan.run_id for plan in asked]


def _start(root: Path, new: list[Plan], message: Mapping[str, Any], secrets: Mapping[str, bytes]) -> None:
    files_of = dict(zip((plan["run_id"] for plan in message["plans"]), message["secrets_of"], strict=True))
    submission.check(new)
    folders: list[Path] = []
    try:
        for plan in new:
            folders.append(execute.prepare(plan, None, message["came_from"], message["passed"]))
            given = files_of[plan.run_id]
            job_environment.lay_secrets({Path(plan.secrets[name]): secrets[label] for name, label in given.items()})
        if message["sweep"]:
            names = [plan["run_id"] for plan in message["plans"]]
            store.write_sweep(root, message["sweep"], names, {"command": list(new[0].command)})
    except BaseException:
        for folder in folders:
            execute.discard(folder)
        raise
    submission.start_or_discard(folders, new, message["sweep"], message["max_array_size"])


def _is_done(folder: Path, token: str) -> bool:
    """Whether an earlier try submitted the run. A folder that was only begun is deleted.

    Raises `UsageError` where the folder is another submission's.
    """
    if not folder.exists():
        return False
    came_from = store.read_or_empty(folder / "provenance.json")
    if came_from and came_from.get("token") != token:
        raise UsageError(f"there is a run {folder.name} in {folder.parent} already; run the command again")
    if (folder / "submission.json").exists():
        return True
    execute.discard(folder)
    return False


@contextlib.contextmanager
def _alone(folder: Path, token: str) -> Iterator[None]:
    """Wait for an earlier try of the submission, which may still run after its connection was lost.

    Raises `UsageError` where the folder of locks is another user's."""
    with contextlib.suppress(FileExistsError):
        records.make_folder(folder)
    ownership.refuse_anothers("submit", [(str(folder.parent), folder.name)])
    with open(os.open(folder / token, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        (folder / token).unlink(missing_ok=True)


def _lay_snapshot(folder: Path, message: Mapping[str, Any], sent: Mapping[str, bytes]) -> None:
    """Assemble a snapshot from the files sent and those of earlier snapshots.

    Raises `UsageError`."""
    place, digest = folder.parent, folder.name
    code_store.make(place)
    if code_store.is_there(place, digest):
        return
    there = _there(place)
    received = place / f".received.{os.getpid()}"
    shutil.rmtree(received, ignore_errors=True)
    records.make_folder(received)
    try:
        paths = {}
        for name, of in message["files"].items():
            if name in sent:
                paths[name] = received / name
                code_store.make_parents(received, name)
                paths[name].write_bytes(sent[name])
            elif of in there:
                paths[name] = there[of]
            else:
                raise UsageError("an older snapshot of the code was deleted meanwhile; run the command again")
        code_store.store(place, digest, paths, message["executable"])
    finally:
        shutil.rmtree(received, ignore_errors=True)


def _there(place: Path) -> dict[str, Path]:
    """Files of the newest snapshots, by their SHA-256."""
    with contextlib.suppress(FileNotFoundError):
        folders = sorted(place.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
        newest = [folder for folder in folders if not folder.name.startswith(".")][:SNAPSHOTS]
        paths = [path for snapshot in newest for path in snapshot.rglob("*") if path.is_file()]
        return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in paths}
    return {}
