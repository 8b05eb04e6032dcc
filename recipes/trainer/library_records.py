"""Losses that training libraries record themselves: Trainer's `trainer_state.json`, Lightning's `metrics.csv`.

They are looked for where a script works and where its arguments point to, once it has ended.
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
from typing import Any

ENTRIES = 20_000
"""Files and folders that are looked at, at most: a script may work in a home folder."""
DEEPEST = 6
"""Folders below the one that is looked through."""
TOUCHES = 10
"""Of a file, to compare clocks."""
LARGEST = 64 << 20
"""Bytes of a record that is read."""
HELD_OUT = re.compile(r"(val|valid|validation|eval)[_/]")
TRAINING_LOSS = re.compile(r"((train|training)[_/])?loss(_step)?")
_SAVED = re.compile(r"step=(\d{1,15})", re.ASCII)


@dataclass(kw_only=True, slots=True)
class Records:
    """What a library recorded, by the number of the optimizer step, from 1 on."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    """loss, lr and grad_norm, as far as they are known."""
    evaluations: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    """accuracy and loss of held-out samples."""
    saved: tuple[int, float] | None = None
    """The last step that was saved and when, in seconds since 1970: the step that had ended then."""


def read(folders: Iterable[Path], since: float) -> Records | None:
    """What was recorded in these folders since that time, by the libraries that this process has imported."""
    readers: dict[str, Callable[[str], Records]] = {}
    if "transformers" in sys.modules:
        readers["trainer_state.json"] = _of_trainer
    if {"lightning", "lightning.pytorch", "pytorch_lightning"} & sys.modules.keys():
        readers["metrics.csv"] = _of_lightning
    if not readers:
        return None
    found = [path for path in _files(folders) if path.name in readers or path.suffix == ".ckpt"]
    ahead: dict[int, float] = {}
    dated = [(_time(path, ahead), path) for path in found]
    recent = sorted((when, path) for when, path in dated if when >= since)
    for when, path in reversed(recent):
        if path.name in readers:
            try:
                records = readers[path.name](_text(path))
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
                csv.Error,
            ):
                continue  # half written, or another program's
            if path.name == "metrics.csv":
                records.saved = _last_saved(recent)
            elif records.saved is not None:
                records.saved = (records.saved[0], when)
            return records
    return None


def folders_of(workdir: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> list[Path]:
    """Where a script may leave records: where it works, its checkpoints, and folders that its arguments name."""
    words = [word.rpartition("=")[2] for word in arguments]
    named = [
        workdir,
        *(workdir / word for word in words if word),
        Path(environ.get("LAUNCHER_CHECKPOINT_DIR", workdir)),
    ]
    return list(dict.fromkeys(path for path in named if _is_folder(path)))


def _of_trainer(text: str) -> Records:
    state = json.loads(text)
    records = Records(saved=(int(state["global_step"]), 0.0))
    for entry in state["log_history"]:
        step = int(entry["step"])
        names = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}
        if values := {key: float(entry[name]) for name, key in names.items() if _is_number(entry.get(name))}:
            records.steps[step] = values
        if held_out := _held_out(entry):
            records.evaluations.append((step, held_out))
    return records


def _of_lightning(text: str) -> Records:
    """Its steps are counted from 0, by batches that were followed by a step."""
    records = Records()
    for row in csv.DictReader(io.StringIO(text, newline="")):
        step = int(row["step"]) + 1
        entry = {name: float(value) for name, value in row.items() if name and value}
        losses = [name for name in entry if TRAINING_LOSS.fullmatch(name)]
        if losses:
            records.steps[step] = {"loss": entry[min(losses, key=lambda name: not name.endswith("_step"))]}
        if held_out := _held_out(entry):
            records.evaluations.append((step, held_out))
    return records


def _held_out(entry: Mapping[str, Any]) -> dict[str, float]:
    held_out = {name: value for name, value in entry.items() if HELD_OUT.match(name) and _is_number(value)}
    accuracies = [float(value) for name, value in held_out.items() if name.endswith(("accuracy", "acc"))]
    losses = [float(value) for name, value in held_out.items() if name.endswith("loss")]
    return {**({"accuracy": accuracies[0]} if accuracies else {}), **({"loss": losses[0]} if losses else {})}


def _last_saved(recent: Sequence[tuple[float, Path]]) -> tuple[int, float] | None:
    """The newest checkpoint whose name has its step, as Lightning's have."""
    for when, path in reversed(recent):
        if path.suffix == ".ckpt" and (step := _SAVED.search(path.name)):
            return int(step[1]), when
    return None


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    looked_at, seen = 0, set()
    for root in folders:
        for folder, inner, names in os.walk(root):
            looked_at += len(inner) + len(names)
            if looked_at > ENTRIES or os.path.realpath(folder) in seen:
                inner.clear()
                continue
            seen.add(os.path.realpath(folder))
            if len(Path(folder).relative_to(root).parts) >= DEEPEST:
                inner.clear()
            inner[:] = [name for name in inner if not name.startswith(".") and name != "site-packages"]
            yield from (Path(folder, name) for name in names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False


def _time(path: Path, ahead: dict[int, float]) -> float:
    """When a file of this user's was written, by this host's clock; of another's, which could say anything, long ago.

    `ahead` keeps how far each file system's clock is ahead.
    """
    try:
        found = path.stat()
    except OSError:
        return float("-inf")
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return float("-inf")
    if found.st_dev not in ahead:
        ahead[found.st_dev] = _seconds_ahead(path.parent)
    return found.st_mtime - ahead[found.st_dev]


def _seconds_ahead(folder: Path) -> float:
    """How far the clock of a file system, which may be a server's, is ahead of this host's; 0 where it isn't known."""
    seconds = []
    try:
        with tempfile.NamedTemporaryFile(prefix=".clock", dir=folder) as file:
            for _ in range(TOUCHES):
                os.utime(file.fileno())
                seconds.append(os.fstat(file.fileno()).st_mtime - time.time())
                time.sleep(0.001)
    except OSError:
        return 0.0
    return max(seconds)  # the kernel's clock for files moves on every few milliseconds only


def _text(path: Path) -> str:
    """Raises `OSError`, and `ValueError` for a file that is too large, or no text."""
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} is too large")
    return content.decode("utf-8")
