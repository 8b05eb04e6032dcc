"""The far side of a submission: the code snapshot put together, the runs laid down and started, each once."""

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
"""Earlier snapshots that are looked into for files that need not be sent again."""
SUBMITTING = ".submitting"
"""Folder of a run root with a lock for each submission that is being carried out."""


def lacking(folder: str, files: Mapping[str, str]) -> list[str]:
    """Names of those files of the snapshot in that folder, given with their SHA-256, that are in none of the earlier
    snapshots. Raises `UsageError` where it is there, and may not be used."""
    if code_store.is_there(Path(folder).parent, Path(folder).name):
        return []
    there = _there(Path(folder).parent)
    return [name for name, digest in files.items() if digest not in there]


def lay_code(data: bytes) -> None:
    """Put a snapshot together, for what is no run."""
    message, code, _ = unpacked(data)
    root = Path(message["root"])
    try:
        store.make_root(root, shared=message["shared"])
        _lay_snapshot(Path(message["folder"]), message, code)
    except OSError as error:
        raise UsageError(f"run_root={root}: {of_system(error, root)}") from None


def submit(data: bytes) -> list[str]:
    """Lay runs down and start them. What an earlier try of the same submission did is not done again.

    Raises `LauncherError` if the queue refuses; then nothing is left.
    """
    message, code, secrets = unpacked(data)
    asked = [record.from_json(each) for each in message["plans"]]
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
    files_of = dict(zip((each["run_id"] for each in message["plans"]), message["secrets_of"], strict=True))
    submission.check(new)
    folders: list[Path] = []
    try:
        for plan in new:
            folders.append(execute.prepare(plan, None, message["came_from"], message["passed"]))
            given = files_of[plan.run_id]
            job_environment.lay_secrets({Path(plan.secrets[name]): secrets[label] for name, label in given.items()})
        if message["sweep"]:
            names = [each["run_id"] for each in message["plans"]]
            store.write_sweep(root, message["sweep"], names, {"command": list(new[0].command)})
    except BaseException:
        for folder in folders:
            execute.discard(folder)
        raise
    submission.start_or_discard(folders, new, message["sweep"], message["max_array_size"])


def _is_done(folder: Path, token: str) -> bool:
    """Whether the run was handed to its queue by an earlier try. A folder that was only begun is taken away.

    Raises `UsageError` where the folder is another submission's.
    """
    if not folder.exists():
        return False
    came_from = store.read_if_whole(folder / "provenance.json")
    if came_from and came_from.get("token") != token:
        raise UsageError(f"there is a run {folder.name} in {folder.parent} already; run the command again")
    if (folder / "submission.json").exists():
        return True
    execute.discard(folder)
    return False


@contextlib.contextmanager
def _alone(folder: Path, token: str) -> Iterator[None]:
    """A try of a submission waits for the one before, which may still be at work though its connection was cut.

    Raises `UsageError` where the folder of locks is another user's."""
    with contextlib.suppress(FileExistsError):
        records.make_folder(folder)
    ownership.refuse_anothers("submit", [(str(folder.parent), folder.name)])
    with open(os.open(folder / token, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        (folder / token).unlink(missing_ok=True)


def _lay_snapshot(folder: Path, message: Mapping[str, Any], sent: Mapping[str, bytes]) -> None:
    """Put the snapshot that the message lists together from what was sent and what earlier ones have.

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
        found = {}
        for name, of in message["files"].items():
            if name in sent:
                found[name] = received / name
                code_store.make_parents(received, name)
                found[name].write_bytes(sent[name])
            elif of in there:
                found[name] = there[of]
            else:
                raise UsageError("an older snapshot of the code was deleted meanwhile; run the command again")
        code_store.store(place, digest, found, message["executable"])
    finally:
        shutil.rmtree(received, ignore_errors=True)


def _there(place: Path) -> dict[str, Path]:
    """Files of the newest snapshots, by their SHA-256."""
    with contextlib.suppress(FileNotFoundError):
        folders = sorted(place.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        newest = [each for each in folders if not each.name.startswith(".")][:SNAPSHOTS]
        paths = [path for each in newest for path in each.rglob("*") if path.is_file()]
        return {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in paths}
    return {}
