"""The real trainer in processes of its own, and what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.amp_launcher.forking import Forked, environment, run_as_main

MODULE = ("-m", "amp_launcher.recipes.mnist.train_torch")
SCRIPT = ("-m", "amp_launcher.torch.script")
SWITCHED = (str(Path(__file__).with_name("switched.py")),)
SUICIDAL = (str(Path(__file__).with_name("suicidal.py")),)


def start(words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE, **more: str) -> Forked:
    return Forked(run_as_main, (program, words), ranks=ranks, environ=environment(**more))


def run(
    words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE, **more: str
) -> subprocess.CompletedProcess[str]:
    return start(words, ranks, program, **more).complete()


def type_command(words: Sequence[str]) -> str:
    """What the mnist trainer prints, as people start it by `python -m`.

    Processes that import torch are slow to start: what `run` shows too is shown there.
    """
    ended = subprocess.run([sys.executable, *MODULE, *words], env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def succeed(words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE) -> str:
    """What a trainer that has to succeed prints."""
    ended = run(words, ranks, program)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def steps(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if "event" not in row]


def result(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return record


def last_state(folder: Path) -> dict[str, Any]:
    """The state of the newest checkpoint."""
    newest = max((folder / "checkpoints").iterdir())
    state: dict[str, Any] = torch.load(newest / "state.pt", weights_only=True)
    return state


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two states differ by a single bit, or in anything else."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return [] if same and torch.equal(bytes_of(one), bytes_of(other)) else [where]
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping) or list(one) != list(other):
            return [where]
        return [name for key in one for name in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [where]
        pairs = enumerate(zip(one, other, strict=True))
        return [name for index, (a, b) in pairs for name in differences(a, b, f"{where}.{index}")]
    return [] if one == other else [where]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
