"""Losses recorded by training libraries: Trainer's `trainer_state.json`, Lightning's `metrics.csv`, and the TensorBoard
event files of both where these are missing.

The files are searched after the script has ended, in its working folder and in the folders that its arguments name.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from amp_launcher.around import event_files

ENTRIES = 20_000
"""Largest number of files and folders that are searched: a script may work in a home folder."""
DEEPEST = 6
"""Levels of subfolders that are searched."""
TOUCHES = 10
"""Number of times that a file is touched to compare clocks."""
LARGEST = 64 << 20
"""Largest size of a record that is read, in bytes."""
EVENT_FOLDERS = 4
"""Number of folders with event files that are read, the newest first, until one holds a library's records."""
HELD_OUT = re.compile(r"(val|valid|validation|eval)[_/]")
TRAINING_LOSS = re.compile(r"((train|training)[_/])?loss(_step)?")
_SAVED = re.compile(r"step=(\d{1,15})", re.ASCII)
_Source = TypeVar("_Source")


@dataclass(kw_only=True, slots=True)
class Records:
    """A library's records by the number of the optimizer step, from 1 on."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """The known values among loss, lr and grad_norm."""
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """Step, and accuracy and loss on held-out samples."""
    saved: tuple[int, float] | None = None
    """The step of the last checkpoint, and when it was saved, in seconds since 1970."""


def read(folders: Iterable[Path], since: float) -> Records | None:
    """The newest records in these folders since that time, by a library that this process has imported.

    `since` is in seconds since 1970. None where there are none.
    """
    readers: dict[str, Callable[[Path], Records]] = {}
    if "transformers" in sys.modules:
        readers["trainer_state.json"] = _of_trainer_state
    if {"lightning", "lightning.pytorch", "pytorch_lightning"} & sys.modules.keys():
        readers["metrics.csv"] = _of_csv
    if not readers:
        return None
    candidates = [path for path in _files(folders) if path.name in readers or _is_event_file(path) or _is_saved(path)]
    ahead: dict[int, float] = {}
    dated = [(_time(path, ahead), path) for path in candidates]
    recent = sorted((when, path) for when, path in dated if when >= since)
    for when, path in reversed(recent):
        if path.name in readers and (records := _read(readers[path.name], path)):
            if path.name == "metrics.csv":
                records.saved = _last_saved(recent)
            elif records.saved is not None:
                records.saved = (records.saved[0], when)
            return records
    events = [path for _, path in recent if _is_event_file(path)]
    newest = dict.fromkeys(path.parent for path in reversed(events))
    for folder in list(newest)[:EVENT_FOLDERS]:
        if records := _read(_of_events, [path for path in events if path.parent == folder]):
            records.saved = _last_saved(recent)
            return records
    return None


def _read(reader: Callable[[_Source], Records], source: _Source) -> Records | None:
    """The records there; None where they are incomplete, or of another program."""
    try:
        return reader(source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, csv.Error):
        return None


def folders_of(workdir: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    """Folders that may hold records: the script's working folder, its checkpoints, and folders in its arguments."""
    words = [word.rpartition("=")[2] for word in arguments]
    folders = [
        workdir,
        *(workdir / word for word in words if word),
        Path(environ.get("LAUNCHER_CHECKPOINT_DIR", workdir)),
        workdir / os.path.expanduser(environ.get("TENSORBOARD_LOGGING_DIR", "")),  # Trainer's
    ]
    return list(dict.fromkeys(path for path in folders if _is_folder(path)))


def _of_trainer_state(path: Path) -> Records:
    state = json.loads(_text(path))
    records = _of_trainer((int(entry["step"]), entry) for entry in state["log_history"])
    records.saved = (int(state["global_step"]), 0.0)
    return records


def _of_csv(path: Path) -> Records:
    rows = csv.DictReader(io.StringIO(_text(path), newline=""))
    return _of_lightning(
        (int(row["step"]), {name: float(value) for name, value in row.items() if name and value}) for row in rows
    )


def _of_events(paths: Sequence[Path]) -> Records:
    """Steps and tags are the library's own; what a script writes itself may have any other steps, such as epochs."""
    steps = event_files.read(paths)
    if any("epoch" in entry for entry in steps.values()):
        return _of_lightning(steps.items())
    if any("train/epoch" in entry for entry in steps.values()):
        return _of_trainer(
            (step, {tag.removeprefix("train/"): value for tag, value in entry.items()}) for step, entry in steps.items()
        )
    raise ValueError("neither Lightning's nor Trainer's")


def _of_trainer(entries: Iterable[tuple[int, Mapping[str, Any]]]) -> Records:
    records = Records()
    for step, entry in entries:
        names = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}
        if values := {key: float(entry[name]) for name, key in names.items() if _is_number(entry.get(name))}:
            records.steps[step] = values
        if held_out := _held_out(entry):
            records.evaluations.append((step, held_out))
    return records


def _of_lightning(rows: Iterable[tuple[int, Mapping[str, float]]]) -> Records:
    """Lightning counts optimizer steps from 0."""
    records = Records()
    for index, entry in rows:
        step = index + 1
        losses = [name for name in entry if TRAINING_LOSS.fullmatch(name)]
        if losses:
            records.steps[step] = {"loss": entry[min(losses, key=lambda name: not name.endswith("_step"))]}
        if held_out := _held_out(entry):
            records.evaluations.append((step, held_out))
    return records


def _held_out(entry: Mapping[str, Any]) -> dict[str, float]:
    names = held_out_names(name for name, value in entry.items() if _is_number(value))
    return {measure: float(entry[name]) for measure, name in names.items()}


def held_out_names(names: Iterable[str]) -> dict[str, str]:
    """The names among these of `accuracy` and `loss` on held-out samples; the shortest where there are several losses,
    as `val_loss` is the sum of `val_head1_loss` and `val_head2_loss`."""
    held_out = [name for name in names if HELD_OUT.match(name)]
    accuracies = [name for name in held_out if name.endswith(("accuracy", "acc"))]
    losses = sorted((name for name in held_out if name.endswith("loss")), key=len)
    return {measure: named[0] for measure, named in (("accuracy", accuracies), ("loss", losses)) if named}


def _last_saved(recent: Sequence[tuple[float, Path]]) -> tuple[int, float] | None:
    """Step and time of the newest checkpoint that has its step in its name, as Lightning's do."""
    for when, path in reversed(recent):
        if _is_saved(path) and (step := _SAVED.search(path.name)):
            return int(step[1]), when
    return None


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    entries, searched = 0, set()
    for root in folders:
        for folder, inner, names in os.walk(root):
            entries += len(inner) + len(names)
            if entries > ENTRIES or os.path.realpath(folder) in searched:
                inner.clear()
                continue
            searched.add(os.path.realpath(folder))
            if len(Path(folder).relative_to(root).parts) >= DEEPEST:
                inner.clear()
            inner[:] = [name for name in inner if not name.startswith(".") and name != "site-packages"]
            yield from (Path(folder, name) for name in names)


def _is_event_file(path: Path) -> bool:
    return path.name.startswith(event_files.PREFIX)


def _is_saved(path: Path) -> bool:
    return path.suffix == ".ckpt"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False


def _time(path: Path, ahead: dict[int, float]) -> float:
    """When a file was written, in seconds since 1970 by this host's clock; minus infinity for another user's, which is
    not trusted.

    `ahead` caches by device the seconds that a file system's clock is ahead.
    """
    try:
        status = path.stat()
    except OSError:
        return float("-inf")
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return float("-inf")
    if status.st_dev not in ahead:
        ahead[status.st_dev] = _seconds_ahead(path.parent)
    return status.st_mtime - ahead[status.st_dev]


def _seconds_ahead(folder: Path) -> float:
    """Seconds that the clock of a file system, which may be a server's, is ahead of this host's; 0 if unknown."""
    seconds = []
    try:
        with tempfile.NamedTemporaryFile(prefix=".clock", dir=folder) as file:
            for _ in range(TOUCHES):
                os.utime(file.fileno())
                seconds.append(os.fstat(file.fileno()).st_mtime - time.time())
                time.sleep(0.001)
    except OSError:
        return 0.0
    return max(seconds)  # the kernel updates its clock for files only every few milliseconds


def _text(path: Path) -> str:
    """The text of a file. Raises `OSError`, and `ValueError` for a file that is too large or not UTF-8."""
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} is too large")
    return content.decode("utf-8")
