"""The real trainer in processes of its own, and a look at what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

MODULE = ("-m", "recipes.torch_.mnist")
SUICIDAL = (str(Path(__file__).with_name("suicidal.py")),)
REPOSITORY = Path(__file__).parents[3]


def command(words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE) -> list[str]:
    """The trainer's command line, under torchrun where there are several ranks."""
    if ranks == 1:
        return [sys.executable, *program, *words]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*torchrun, *program, *words]


def environment(**more: str) -> dict[str, str]:
    """Ours with one thread, and without what would make the trainer another job's."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("LAUNCHER_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **more}


def start(words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE, **more: str) -> subprocess.Popen[str]:
    """A trainer in a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        command(words, ranks, program),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(
    words: Sequence[str], ranks: int = 1, program: Sequence[str] = MODULE, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(words, ranks, program), env=environment(**more), capture_output=True, text=True, timeout=300
    )


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
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


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
        return [each for key in one for each in differences(one[key], other[key], f"{where}.{key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [where]
        pairs = enumerate(zip(one, other, strict=True))
        return [each for index, (a, b) in pairs for each in differences(a, b, f"{where}.{index}")]
    return [] if one == other else [where]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
