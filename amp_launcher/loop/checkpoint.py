"""Atomic checkpoints: written aside, flushed to the disk, renamed into place.

A checkpoint is a folder `step-000000123` with the state in files of the framework's own kind, one or, where each rank
writes its shards, several, and `manifest.json`, which holds their names, sizes and SHA-256 and facts for people.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from amp_launcher.run_folder import naming, now, sync_folder, write_json
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import ProcessGroup

SCHEMA = 3
NAME = re.compile(r"step-(\d{9,})")
ASIDE = "."
_UNDESCRIBED = "its manifest does not describe its files"


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint whose state was verified."""

    path: Path
    step: int
    manifest: Mapping[str, Any]

    @property
    def state(self) -> Path:
        """The file with the state, or with what of it is not in shards."""
        return self.path / str(self.manifest["state"])

    @property
    def shards(self) -> int:
        """The number of ranks that wrote shards; 0 where one file has the whole state."""
        return int(self.manifest.get("shards", 0))


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
    aside = _make_aside(folder, step)
    try:
        return _complete(aside, step, name, write, {}, facts, keep, check)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # on a full disk, room for the files that say so
        raise


def save_shards(
    group: ProcessGroup,
    folder: Path,
    step: int,
    name: str,
    write: Callable[[BinaryIO], None],
    write_shards: Callable[[Path], Iterable[str]],
    facts: Mapping[str, Any],
    keep: int,
    check: Callable[[], None] = lambda: None,
) -> Path | None:
    """The same by all ranks together, into a folder that all of them see. Returns the checkpoint's folder on rank 0.

    Rank 0 writes the file `name` by `write`. Every rank writes its shards by `write_shards`, which flushes them and
    returns their names. Where a rank fails, every rank raises, and nothing is left.
    """
    first = group.rank == 0
    aside = group.on_all(lambda: _make_aside(folder, step) if first else None)[0]
    assert aside is not None
    try:
        group.on_all(lambda: _refuse_unseen(aside))
        shards = group.on_all(lambda: {file: _described(aside / file) for file in write_shards(aside)})
        files = {file: described for by_rank in shards for file, described in by_rank.items()}
        everything = {**facts, "shards": group.size}

        def complete() -> Path | None:
            return _complete(aside, step, name, write, files, everything, keep, check) if first else None

        return group.on_all(complete)[group.rank]
    except BaseException:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _make_aside(folder: Path, step: int) -> Path:
    """The folder that becomes the checkpoint's."""
    folder.mkdir(mode=0o700, exist_ok=True)
    aside = folder / f"{ASIDE}step-{step:09d}.{os.getpid()}"
    aside.mkdir(mode=0o700)
    return aside


def _refuse_unseen(aside: Path) -> None:
    if not aside.is_dir():
        raise FileNotFoundError(
            f"{aside}, which rank 0 has made, is not there on {socket.gethostname()}: shards of a checkpoint need a "
            "run folder on a file system that all nodes share (run_root=)"
        )


def _complete(
    aside: Path,
    step: int,
    name: str,
    write: Callable[[BinaryIO], None],
    shards: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    keep: int,
    check: Callable[[], None],
) -> Path:
    """Write the state and the manifest, rename the folder into place, and delete all but the `keep` newest."""
    with naming(aside / name), open(aside / name, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    files = {name: _described(aside / name), **shards}
    manifest = {"schema": SCHEMA, "step": step, "time": now(), "state": name, "files": files, **facts}
    write_json(aside / "manifest.json", manifest)
    check()
    path = aside.with_name(f"step-{step:09d}")
    if path.exists():
        _remove(path)
    os.rename(aside, path)
    sync_folder(path.parent)
    kept = [saved for number, saved in _all(path.parent) if number <= step]  # any later one is broken
    for old in kept[:-keep]:
        with contextlib.suppress(OSError):  # tidying up is no reason to lose a run
            _remove(old)
    return path


def newest(folder: Path, warn: Callable[[str], None], step: int | None = None) -> Checkpoint | None:
    """The newest intact checkpoint, or that of `step`; None where there is none.

    Broken ones are skipped with a warning that names them. Raises `SettingsError` for one of another schema.
    """
    for number, path in reversed(_all(folder)):
        if step is None or number == step:
            try:
                return Checkpoint(path=path, step=number, manifest=_verified_manifest(path, number))
            except SettingsError:
                raise
            except (OSError, ValueError) as error:
                warn(f"{path} is skipped: {error}")
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have checkpoints, intact or not, in order."""
    return [step for step, _ in _all(folder)]


def _verified_manifest(path: Path, step: int) -> dict[str, Any]:
    """The manifest of the checkpoint of `step`, whose files are as it describes them.

    Raises `OSError` for a file that can't be read, `ValueError` for any other fault, and `SettingsError` for a manifest
    of another schema.
    """
    manifest = json.loads((path / "manifest.json").read_text())
    if not isinstance(manifest, dict) or not isinstance(manifest.get("schema"), int):
        raise ValueError(_UNDESCRIBED)
    if manifest["schema"] != SCHEMA:
        raise SettingsError(
            f"{path} is of schema {manifest['schema']}, and this version reads {SCHEMA}; `python -m launcher resume` "
            "continues with the code that the run began with",
            "run",
        )
    if manifest.get("step") != step:
        raise ValueError(f"its manifest is of step {manifest.get('step')}")
    state, files = manifest.get("state"), manifest.get("files")
    if not isinstance(state, str) or not isinstance(manifest.get("shards", 0), int):
        raise ValueError(_UNDESCRIBED)
    if not isinstance(files, dict) or state not in files:
        raise ValueError(_UNDESCRIBED)
    for name, described in files.items():
        if Path(name).name != name or not isinstance(described, dict):
            raise ValueError(_UNDESCRIBED)
        if _described(path / name) != described:
            raise ValueError(f"{name} is not what was saved")
    return manifest


def for_resuming(folder: Path, group: ProcessGroup) -> Checkpoint | None:
    """The newest intact checkpoint, on every rank, after leftovers of a killed attempt are deleted. Raises
    `SettingsErrorOfAll` where it is of another schema."""

    def latest() -> Checkpoint | None:
        clear_leftovers(folder)
        return newest(folder, warn=lambda text: print(f"warning: {text}", flush=True))

    return group.from_rank_zero(latest)


def clear_leftovers(folder: Path) -> None:
    """Delete what a killed attempt was still writing or deleting. Only while no other attempt runs."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(ASIDE):
                shutil.rmtree(path, ignore_errors=True)


def _all(folder: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, intact or not, in order."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(match[1]), path) for path in paths if (match := NAME.fullmatch(path.name)))


def _remove(path: Path) -> None:
    """Rename first: a reader never meets a checkpoint that is half deleted."""
    aside = path.with_name(f"{ASIDE}{path.name}.{os.getpid()}.old")
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _described(path: Path) -> dict[str, Any]:
    """Size and digest of a file, as a manifest has them."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}
