"""The whole state of a run in torch, saved and taken up again by all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from recipes.settings import Settings
from recipes.torch_ import devices
from recipes.torch_.devices import World
from recipes.torch_.precision import Precision
from recipes.trainer import checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, restored, to_dict
from recipes.typed import plain

FILE = "state.pt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training changes: the cast model without wrappers, its optimizers, and the precision's own state."""

    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    precision: Precision

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "precision": self.precision.state_dict(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        for optimizer, each in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.precision.load_state_dict(saved["precision"])


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`recipes.trainer.training.State` in torch."""

    trained: Trained
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        random = self.world.gather(devices.random_state(self.world.device))
        if self.world.rank:
            return None
        saved = {**self.trained.state(), "progress": to_dict(progress), "random": random}
        facts = {"settings": plain(self.settings), **_machine(self.world)}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(folder, progress.step, FILE, lambda file: write(file, saved), facts, keep, check)

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        found = checkpoint.for_resuming(folder, self.world)
        if found is None:
            return None
        refuse_another_job(found, self.settings)
        saved = read(found.state)
        self.trained.load(saved)
        random = saved["random"]
        if self.world.rank < len(random):
            devices.set_random_state(random[self.world.rank], self.world.device)
        return restored(saved["progress"], found, _machine(self.world)), found.path


def write(file: BinaryIO, state: Mapping[str, Any]) -> None:
    """Write the state. A file system that refuses it raises `OSError`."""
    try:
        torch.save(dict(state), file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):  # what torch says of an unfinished file hides why it is one
            raise error.__context__ from None
        raise


def read(path: Path) -> dict[str, Any]:
    """The state, on the CPU. No code in it is run."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _machine(world: World) -> dict[str, Any]:
    """What has to be the same for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.size,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
