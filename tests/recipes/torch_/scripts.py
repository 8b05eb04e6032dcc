"""A user's script under the wrapper, in this process or in processes of its own."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recipes import metrics
from recipes.torch_.script import TorchWrapper
from recipes.trainer import script as shared
from tests.recipes.torch_ import trainers

HEAD = """\
import sys
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
inputs = torch.randn(64, 32)
targets = inputs.sum(1, keepdim=True)
def gradients(scale=1.0):
    (net(inputs) ** 2).mean().mul(scale).backward()
"""
PLAIN = (
    HEAD
    + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(30):
    optimizer.zero_grad()
    loss = ((net(inputs) - targets) ** 2).mean()
    loss.backward()
    optimizer.step()
print("ended at", loss.item())
"""
)


class Ended(NamedTuple):
    """A script that has ended, and the record of its run."""

    code: int
    out: str
    err: str
    result: dict[str, Any]
    """Empty where none was written."""
    rows: list[dict[str, Any]]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of optimizer steps."""
        return [row for row in self.rows if "event" not in row]

    @property
    def verdict(self) -> str:
        return str(self.result["observed"]["verdict"])


def _words(folder: Path, text: str, words: Sequence[str], passed: Sequence[str]) -> list[str]:
    (folder / "train.py").write_text(textwrap.dedent(text))
    own = [f"script={folder}/train.py", f"run={folder}/run", "device=cpu"]
    return [*words, *own, *(["--", *passed] if passed else [])]


def _ended(folder: Path, code: int, out: str, err: str) -> Ended:
    result, rows = folder / "run" / "result.json", folder / "run" / "metrics.jsonl"
    values = json.loads(result.read_text()) if result.exists() else {}
    return Ended(code, out, err, values, list(metrics.read(rows)) if rows.exists() else [])


class InProcess:
    """Runs the next attempt of a script in this process."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str]) -> None:
        self._folder, self._patch, self._output = folder, patch, output

    def __call__(self, text: str, *words: str, passed: Sequence[str] = (), **environ: str) -> Ended:
        with self._patch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            patch.chdir(self._folder)
            patch.setattr(sys, "argv", list(sys.argv))
            patch.setattr(sys, "path", list(sys.path))
            self._output.readouterr()
            code = shared.main("torch", _words(self._folder, text, words, passed), TorchWrapper)
        return _ended(self._folder, code, *self._output.readouterr())


def fork(
    folder: Path, text: str, *words: str, passed: Sequence[str] = (), ranks: int = 1, attempt: int = 1, **environ: str
) -> Ended:
    """Run an attempt of a script in processes of its own."""
    (folder / "run" / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
    words = (f"workdir={folder}", *words)
    environ = {"LAUNCHER_ATTEMPT": str(attempt), **environ}
    done = trainers.run(_words(folder, text, words, passed), ranks, trainers.SCRIPT, **environ)
    return _ended(folder, done.returncode, done.stdout, done.stderr)
