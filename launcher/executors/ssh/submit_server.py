"""A submission on the host: lay down the code, make the run folders, start each run once."""

from __future__ import annotations

import base64
import functools
import json
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

from amp_launcher import records
from launcher.code import code_store
from launcher.code.code_archive import unpacked_files
from launcher.config import job_environment
from launcher.errors import UsageError, of_system
from launcher.executors import execute, submission
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.runs import run_roots, store

RECEIVED = ".received"
"""Folder for the files of a snapshot that arrives; its lock is `.received.lock`."""


def has_code(folder: str) -> bool:
    """Whether a snapshot is there. Raises `UsageError` if it is and may not be used."""
    return code_store.is_there(Path(folder).parent, Path(folder).name)


def write_code(data: bytes, folder: str, shared: bool) -> None:
    """Lay down a snapshot. Raises `UsageError`."""
    place, digest = Path(folder).parent, Path(folder).name
    try:
        store.make_root(place.parent, shared=shared)
        code_store.make(place)
        with run_roots.locked(place / f"{RECEIVED}.lock"):
            received = place / RECEIVED
            shutil.rmtree(received, ignore_errors=True)  # of an agent that was killed
            records.make_folder(received)
            try:
                code_store.store(place, digest, unpacked_files(data, received))
            finally:
                shutil.rmtree(received, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"run_root={place.parent}: {of_system(error, place.parent)}") from None


def submit(data: bytes) -> list[str]:
    """Make run folders and start the runs, but those of an earlier try of the same submission. Raises `LauncherError`
    if the queue refuses; then no run is left."""
    message = json.loads(zlib.decompress(data))
    asked = [record.from_json(plan) for plan in message["plans"]]
    root = Path(asked[0].run_root)
    came_from = message["came_from"]
    try:
        store.make_root(root, shared=asked[0].shared is not None)
        place = Path(asked[0].code_dir).parent  # which is the user's alone
        code_store.make(place)
        # An earlier try may still be at work after its connection was lost.
        with run_roots.locked(lock := place / f".submitting.{came_from['token']}"):
            new = [plan for plan in asked if not _is_done(root / plan.run_id, came_from["token"])]
            if new:
                secrets = {plan.run_id: own for plan, own in zip(asked, message["secrets"], strict=True)}
                populate = [functools.partial(_write_secrets, plan, secrets[plan.run_id]) for plan in new]
                submission.submit(new, came_from, passed=message["passed"], populate=populate)
            lock.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"run_root={root}: {of_system(error, root)}") from None
    return [plan.run_id for plan in asked]


def _write_secrets(plan: Plan, secrets: Mapping[str, str], folder: Path) -> None:
    job_environment.write_secrets({Path(plan.secrets[name]): base64.b64decode(text) for name, text in secrets.items()})


def _is_done(folder: Path, token: str) -> bool:
    """Whether an earlier try submitted the run. A folder that was only begun is deleted. Raises `UsageError` where the
    folder is another submission's."""
    if not folder.exists():
        return False
    came_from = store.read_or_empty(folder / "provenance.json")
    if came_from and came_from.get("token") != token:
        raise UsageError(f"there is a run {folder.name} in {folder.parent} already; run the command again")
    if (folder / "submission.json").exists():
        return True
    execute.discard(folder)
    return False
