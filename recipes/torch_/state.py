"""The whole state of a run in torch, saved and taken up again by all ranks together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recipes.settings import Settings
from recipes.torch_ import checkpoint, devices
from recipes.torch_.devices import World
from recipes.torch_.precision import Precision
from recipes.typed import SettingsError, leaves, plain, show

FREE = ("epochs", "steps", "checkpoint", "require_proof", "deterministic", "device", "data.dir", "data.download")
"""Settings that may change when a run goes on; the others shape what it is."""


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
class Progress:
    """How far a run has come, beside its tensors."""

    step: int = 0
    """Optimizer steps done."""
    attempt: int = 0
    """Attempt that did the last of them, counted from 1."""
    skipped: int = 0
    """Steps among them that the loss scale skipped."""
    seconds: float = 0.0
    """That all attempts took."""
    metrics_offset: int = 0
    """Bytes of metrics.jsonl that belong to these steps."""
    exact: bool = True
    """Whether every attempt repeats bit by bit, and went on from the one before on the same kind of machine."""
    reports: tuple[dict[str, Any], ...] = ()
    """What witnesses saw, on all ranks."""


def save(
    folder: Path,
    trained: Trained,
    progress: Progress,
    settings: Settings,
    world: World,
    check: Callable[[], None] = lambda: None,
) -> Path | None:
    """A checkpoint of all ranks, written by rank 0, which gets its path. Collective. `check` is `checkpoint.save`'s."""
    random = world.gather(devices.random_state(world.device))
    if world.rank:
        return None
    saved = {
        **trained.state(),
        "progress": {each.name: getattr(progress, each.name) for each in dataclasses.fields(progress)},
        "random": random,
    }
    facts = {"settings": plain(settings), **_machine(world)}
    return checkpoint.save(folder, progress.step, saved, facts, settings.checkpoint.keep, check)


def resume(folder: Path, trained: Trained, settings: Settings, world: World) -> tuple[Progress, Path] | None:
    """Take up the newest whole checkpoint, if there is one: its progress and its path. Collective.

    Raises `SettingsError` for the checkpoint of another job.
    """
    found = None
    if world.rank == 0:
        checkpoint.clear_leftovers(folder)
        found = checkpoint.newest(folder, warn=lambda text: print(f"warning: {text}", flush=True))
    found = world.broadcast(found)
    if found is None:
        return None
    _refuse_another_job(found, settings)
    saved = found.load()
    trained.load(saved)
    random = saved["random"]
    if world.rank < len(random):
        devices.set_random_state(random[world.rank], world.device)
    progress = Progress(**saved["progress"])
    same = all(found.manifest.get(key) == value for key, value in _machine(world).items())
    return dataclasses.replace(progress, exact=progress.exact and same), found.path


def _machine(world: World) -> dict[str, Any]:
    """What has to be the same for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.size,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }


def _refuse_another_job(found: checkpoint.Found, settings: Settings) -> None:
    before, after = leaves(found.manifest["settings"]), leaves(plain(settings))
    for key in sorted({*before, *after}):
        free = any(key == each or key.startswith(f"{each}.") for each in FREE)
        if not free and before.get(key) != after.get(key):
            raise SettingsError(
                f"{key}={show(after.get(key))}, and {found.path} was saved with {key}={show(before.get(key))}; "
                "say that to go on with it, or name another run folder to start anew",
                key,
            )
