"""The MNIST trainer with plain numbers for weights and without torch: `python plain_trainer.py WORDS run=FOLDER`.

The loop, checkpoints, metrics, stopping and result are the recipes' own. It starts in a tenth of torch's time, for
tests of what Slurm and the run script do to any trainer.

PACE in the environment is seconds that each step takes, PACE_SAVE seconds before a checkpoint is put into its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amp_launcher.arguments import Arguments
from amp_launcher.loop import checkpoint, execution, sampling
from amp_launcher.loop import main as trainer
from amp_launcher.loop import run as shared
from amp_launcher.loop.progress import Progress, restored, to_dict
from amp_launcher.loop.protocols import Executed
from amp_launcher.precision import observation
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.settings import Settings
from amp_launcher.world.device import Device
from amp_launcher.world.world import ProcessGroup, RankInfo

SAMPLES = 512
FILE = "state.json"


class OneProcess(ProcessGroup):
    rank, size = 0, 1
    members = (RankInfo(rank=0, host="here", device="cpu", gpu="", visible="none"),)

    def gather(self, value: Any) -> list[Any]:
        return [value]


class Plain(Device):
    def numbers(self, values: Sequence[Any], count: Sequence[int]) -> list[Any]:
        return list(values)

    def where(self) -> str:
        return "plain numbers"

    def framework_versions(self) -> dict[str, str | None]:
        return {}

    def no_gpu(self) -> Any:
        raise AssertionError("it has no GPU")

    wait = gpu_memory = reset_gpu_memory = gpu_name = no_gpu


class Observer:
    """Reports what proves the precision. Nothing of the kind runs here."""

    def __init__(self, mode: ResolvedPrecision) -> None:
        self.mode, self.reports = mode, []

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        yield
        dtype = self.mode.dtype
        report = observation.head(number, self.mode, parameters=[{"group": "other", "dtype": dtype, "elements": 1}])
        call = {"operation": "mm", "functions": ["linear"], "dtype": dtype, "kept": False, "compiled": False}
        call |= {"device": "cpu", "calls": 1, "flops": 1}
        report |= {"calls": [{**call, "backward": backward} for backward in (False, True)], "optimizer": {"float32": 1}}
        self.reports.append(report)


class Numbers:
    """State and executor: a number that depends on each step's samples and on a random generator."""

    at_once = 1

    def __init__(self, settings: Settings) -> None:
        self.settings, self.model, self.random = settings, 1, random.Random(settings.seed)

    def shares(self, order: Any, epoch: int) -> Any:
        return sampling.share(order, self.settings.batch, 1, 0, 1)

    def execute(self, shares: Any, first: int, count: int) -> Executed:
        time.sleep(float(os.environ.get("PACE", "0")))
        for index in shares[first].flat:
            self.model = (self.model * 31 + int(index) + self.random.randrange(1000)) % 2**31
        return Executed(loss=1 + self.model / 2**31, lr=0.1, outcome=StepOutcome(overflowed=False, grad_norm=1.0))

    def save(self, folder: Path, progress: Progress, check: Callable[[], None]) -> Path:
        state = {"model": self.model, "random": self.random.getstate(), "progress": to_dict(progress)}

        def late() -> None:
            time.sleep(float(os.environ.get("PACE_SAVE", "0")))
            check()

        # Padded, so that on a full disk it is the checkpoint that finds no room.
        text, keep = json.dumps(state).encode().ljust(2**20), self.settings.checkpoint.keep
        return checkpoint.save(folder, progress.step, FILE, lambda file: file.write(text), {}, keep, late)

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        saved = checkpoint.for_resuming(folder, OneProcess())
        if saved is None:
            return None
        state = json.loads(saved.state.read_text())
        version, words, gauss = state["random"]
        self.model = state["model"]
        self.random.setstate((version, tuple(words), gauss))
        return restored(state["progress"], saved, {}), saved.path

    def machine(self) -> dict[str, Any]:
        return {}

    def digests(self) -> dict[str, bytes]:
        return {"model": str(self.model).encode()}

    def saved_digests(self, saved: checkpoint.Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        state = json.loads(saved.state.read_text())
        return {"model": str(state["model"]).encode()}, state["progress"]


class Run(shared.Run):
    framework = "torch"

    @classmethod
    def join(cls, chosen: Arguments, began: float) -> Run:
        return cls(chosen, OneProcess(), Plain("cpu"), 1, began)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.deterministic = True
        amp, scale = self.settings.amp, self.settings.loss_scale
        mode = resolve(amp, scale, framework="torch", device="cpu", capability=None, environ=os.environ)
        self.precision = SimpleNamespace(resolved=mode, scale=None)

    def train(self) -> None:
        numbers = Numbers(self.settings)
        execution.train(
            self,
            state=numbers,
            observer=Observer(self.mode),
            executor=numbers,
            evaluate=lambda: self.measures(numbers),
            samples=SAMPLES,
            data="numbers",
            data_digest="",
        )

    @staticmethod
    def measures(numbers: Numbers) -> Mapping[str, float]:
        return {"accuracy": numbers.model / 2**31}


if __name__ == "__main__":
    trainer.start(Run, "mnist", Run.train)
