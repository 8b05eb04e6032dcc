"""A user's script under the wrapper, in this process or in processes of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from amp_launcher import metrics
from tests.amp_launcher.torch import trainers

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


def loop(steps: int, optimizer: str = "SGD(net.parameters(), lr=0.1)") -> str:
    """The text of a loop that takes so many steps, after `HEAD`."""
    return f"""
optimizer = torch.optim.{optimizer}
for step in range({steps}):
    optimizer.zero_grad()
    gradients()
    optimizer.step()
"""


def with_autocast(arguments: str, text: str = PLAIN) -> str:
    """A script that computes its loss under autocast with these arguments."""
    return text.replace("    loss = ", f"    with torch.autocast('cpu', {arguments}):\n        loss = ")


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


def _ended(folder: Path, code: int, out: str, err: str, result: dict[str, Any]) -> Ended:
    rows = folder / "run" / "metrics.jsonl"
    return Ended(code, out, err, result, list(metrics.read(rows)) if rows.exists() else [])


def in_process(run_script: Callable[..., Any], folder: Path) -> Callable[..., Ended]:
    """A function that runs the next attempt of a script by the fixture `run_script` in its `tmp_path`."""

    def run(text: str, *words: str, **options: Any) -> Ended:
        code, printed, result = run_script("torch", text, *words, **options)
        return _ended(folder, code, printed.out, printed.err, result)

    return run


def fork(
    folder: Path, text: str, *words: str, passed: Sequence[str] = (), ranks: int = 1, attempt: int = 1, **environ: str
) -> Ended:
    """Run an attempt of a script in processes of its own; with TF32=on or off under `switched`."""
    run = folder / "run"
    (run / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(textwrap.dedent(text))
    own = [f"script={folder}/train.py", f"run={run}", f"workdir={folder}", "device=cpu"]
    environ = {"LAUNCHER_ATTEMPT": str(attempt), **environ}
    done = trainers.run(
        [*words, *own, "--", *passed], ranks, trainers.SWITCHED if "TF32" in environ else trainers.SCRIPT, **environ
    )
    result = trainers.result(run) if (run / "result.json").exists() else {}
    return _ended(folder, done.returncode, done.stdout, done.stderr, result)
