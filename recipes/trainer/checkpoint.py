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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from recipes.run_folder import naming, now, sync_folder, write_json
from recipes.trainer.world import ProcessGroup
from recipes.typed import SettingsError

SCHEMA = 3
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
    path, aside = _begin(folder, step)
    try:
        _write(aside / name, write)
        _finish(aside, step, name, _described(aside, [name]), facts, check)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)  # on a full disk, room for the files that say so
        raise
    return _commit(aside, path, step, keep)


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
    begun = group.on_all(lambda: _begin(folder, step) if first else None)[0]
    assert begun is not None
    path, aside = begun
    try:
        group.on_all(lambda: _refuse_unseen(aside))
        described = group.on_all(lambda: _described(aside, write_shards(aside)))
        files = {name: file for by_rank in described for name, file in by_rank.items()}

        def finish() -> Path:
            _write(aside / name, write)
            everything = {**_described(aside, [name]), **files}
            _finish(aside, step, name, everything, {**facts, "shards": group.size}, check)
            return _commit(aside, path, step, keep)

        return group.on_all(lambda: finish() if first else None)[group.rank]
    except BaseException:
        if first:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _begin(folder: Path, step: int) -> tuple[Path, Path]:
    """The checkpoint's folder to be, and the one that is made for writing it aside."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"step-{step:09d}"
    aside = folder / f"{ASIDE}{path.name}.{os.getpid()}"
    aside.mkdir(mode=0o700)
    return path, aside


def _refuse_unseen(aside: Path) -> None:
    if not aside.is_dir():
        raise FileNotFoundError(
            f"{aside}, which rank 0 has made, is not there on {socket.gethostname()}: shards of a checkpoint need a "
            "run folder on a file system that all nodes share (run_root=)"
        )


def _write(path: Path, write: Callable[[BinaryIO], None]) -> None:
    with naming(path), open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _described(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and digest of files, as a manifest has them."""
    described = {}
    for name in names:
        digest, size = _digest(folder / name)
        described[name] = {"bytes": size, "sha256": digest}
    return described


def _finish(
    aside: Path,
    step: int,
    name: str,
    files: Mapping[str, Mapping[str, Any]],
    facts: Mapping[str, Any],
    check: Callable[[], None],
) -> None:
    manifest = {"schema": SCHEMA, "step": step, "time": now(), "state": name, "files": files, **facts}
    write_json(aside / "manifest.json", manifest)
    check()


def _commit(aside: Path, path: Path, step: int, keep: int) -> Path:
    """Rename the folder into place, and delete all but the `keep` newest."""
    if path.exists():
        _remove(path)
    os.rename(aside, path)
    sync_folder(path.parent)
    older = [saved for saved in _all(path.parent) if saved[0] <= step]  # any ahead is broken, or the run would be there
    for _, old in older[keep:]:
        with contextlib.suppress(OSError):  # tidying up is no reason to lose a run
            _remove(old)
    return path


def newest(folder: Path, warn: Callable[[str], None], step: int | None = None) -> Checkpoint | None:
    """The newest intact checkpoint, or that of `step`; None where there is none.

    Broken ones are skipped with a warning that names them. Raises `SettingsError` for one of another schema.
    """
    for number, path in _all(folder):
        if step is not None and number != step:
            continue
        try:
            manifest = json.loads((path / "manifest.json").read_text())
            if not isinstance(manifest, dict) or not isinstance(manifest.get("schema"), int):
                warn(f"{path} is skipped: its manifest does not describe its files")
                continue
            if manifest["schema"] != SCHEMA:
                raise SettingsError(
                    f"{path} is of schema {manifest['schema']}, and this version reads {SCHEMA}; `python -m "
                    "launcher resume` goes on with the code that the run began with",
                    "run",
                )
            if manifest.get("step") != number:
                warn(f"{path} is skipped: its manifest is of step {manifest.get('step')}")
                continue
            broken = _broken(path, manifest)
        except SettingsError:
            raise
        except (OSError, ValueError) as error:
            warn(f"{path} is skipped: {error}")
            continue
        if broken:
            warn(f"{path} is skipped: {broken} is not what was saved")
        else:
            return Checkpoint(path=path, step=number, manifest=manifest)
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have checkpoints, intact or not, in order."""
    return sorted(step for step, _ in _named(folder))


def _broken(path: Path, manifest: Mapping[str, Any]) -> str:
    """The name of a file that isn't as the manifest describes it; empty where all are.

    Raises `OSError` for a file that is missing, `ValueError` for a manifest that doesn't describe its files.
    """
    state, shards = manifest.get("state"), manifest.get("shards", 0)
    if not isinstance(state, str) or not isinstance(shards, int):
        raise ValueError("its manifest does not describe its files")
    files = manifest.get("files")
    if not isinstance(files, dict) or state not in files:
        raise ValueError("its manifest does not describe its files")
    for name, described in files.items():
        if not isinstance(name, str) or Path(name).name != name or not isinstance(described, dict):
            raise ValueError("its manifest does not describe its files")
        digest, size = _digest(path / name)
        if (described.get("sha256"), described.get("bytes")) != (digest, size):
            return name
    return ""


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
