"""Atomic checkpoints: written aside, flushed to the disk, renamed into place.

A checkpoint is a folder `step-000000123` with the state in one file of the framework's own kind, and `manifest.json`,
which holds that file's name and SHA-256 and facts for people.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from recipes.run_folder import naming, now, sync_folder, write_json
from recipes.trainer.world import ProcessGroup

SCHEMA = 1
NAME = re.compile(r"step-(\d{9,})")
ASIDE = "."


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint whose state was verified."""

    path: Path
    step: int
    manifest: Mapping[str, Any]

    @property
    def state(self) -> Path:
        """The file with the state."""
        return self.path / str(self.manifest["state"])


def save(
    folder: Path,
    step: int,
    name: str,
    write: Callable[[BinaryIO], None],
    facts: Mapping[str, Any],
    keep: int,
    check: Callable[[], None] = lambda: None,
) -> Path:
    """Save the state of `step`, and delete all but the `keep` newest. Returns the checkpoint's folder.

    `name` is that of the state's file, and `write` writes it.

    Killed at any moment it leaves either the complete checkpoint or a folder whose name begins with a dot; a save that
    fails leaves neither. `check` is called last before the rename, and may raise.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"step-{step:09d}"
    aside = folder / f"{ASIDE}{path.name}.{os.getpid()}"
    aside.mkdir(mode=0o700)
    try:
        _write(aside, step, name, write, facts)
        check()
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # on a full disk, room for the files that say so
        raise
    if path.exists():
        _remove(path)
    os.rename(aside, path)
    sync_folder(folder)
    older = [each for each in _all(folder) if each[0] <= step]  # any ahead is broken, or the run would be there
    for _, old in older[keep:]:
        with contextlib.suppress(OSError):  # tidying up is no reason to lose a run
            _remove(old)
    return path


def _write(folder: Path, step: int, name: str, write: Callable[[BinaryIO], None], facts: Mapping[str, Any]) -> None:
    with naming(folder / name), open(folder / name, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    digest, size = _digest(folder / name)
    manifest = {"schema": SCHEMA, "step": step, "time": now(), "state": name, "bytes": size, "sha256": digest, **facts}
    write_json(folder / "manifest.json", manifest)


def newest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint, or None. Broken ones are skipped with a warning that names them."""
    for step, path in _all(folder):
        try:
            manifest = json.loads((path / "manifest.json").read_text())
            if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA or manifest.get("step") != step:
                warn(f"{path} is skipped: its manifest is not of schema {SCHEMA} and step {step}")
                continue
            digest, size = _digest(path / str(manifest.get("state")))
        except (OSError, ValueError) as error:
            warn(f"{path} is skipped: {error}")
            continue
        if (manifest.get("sha256"), manifest.get("bytes")) != (digest, size):
            warn(f"{path} is skipped: its state is not the one that was saved ({size} bytes)")
        else:
            return Checkpoint(path=path, step=step, manifest=manifest)
    return None


def for_resuming(folder: Path, group: ProcessGroup) -> Checkpoint | None:
    """The newest intact checkpoint, on every rank, after leftovers of a killed attempt are deleted."""
    found = None
    if group.rank == 0:
        clear_leftovers(folder)
        found = newest(folder, warn=lambda text: print(f"warning: {text}", flush=True))
    return group.broadcast(found)


def clear_leftovers(folder: Path) -> None:
    """Delete what a killed attempt was still writing or deleting. Only while no other attempt runs."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(ASIDE):
                shutil.rmtree(path, ignore_errors=True)


def _all(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, intact or not, newest first."""
    return sorted(_named(folder), reverse=True)


def _named(folder: Path) -> Iterator[tuple[int, Path]]:
    if folder.is_dir():
        for path in folder.iterdir():
            match = NAME.fullmatch(path.name)
            if match:
                yield int(match[1]), path


def _remove(path: Path) -> None:
    """Rename first: a reader never meets a checkpoint that is half deleted."""
    aside = path.with_name(f"{ASIDE}{path.name}.{os.getpid()}.old")
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size
