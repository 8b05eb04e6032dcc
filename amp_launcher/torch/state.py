"""The state of a run in torch, saved and restored by all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from amp_launcher.loop import checkpoint
from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.loop.progress import Progress, refuse_another_job, restored, to_dict
from amp_launcher.settings import Settings
from amp_launcher.torch import devices, digests, resharding
from amp_launcher.torch.devices import World
from amp_launcher.torch.trained import Trained
from amp_launcher.typed import SettingsError, plain

FILE = "state.pt"


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`amp_launcher.loop.protocols.State` in torch."""

    trained: Trained
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        random = self.world.gather(devices.random_state(self.world.device))
        facts = {"settings": plain(self.settings), **_machine(self.world)}
        step, keep = progress.step, self.settings.checkpoint.keep
        position = {"progress": to_dict(progress), "random": random}
        if not resharding.is_sharded(self.trained.model):
            if self.world.rank:
                return None
            saved = {**self.trained.state(), **position}
            return checkpoint.save(folder, step, FILE, lambda file: write(file, saved), facts, keep, check)
        from amp_launcher.torch import shards

        parted: list[tuple[resharding.Shards, dict[str, Any]]] = []
        self.world.on_all(lambda: parted.append(resharding.split(self.trained)))
        ((values, rest),) = parted
        return checkpoint.save_shards(
            self.world,
            folder,
            step,
            FILE,
            lambda file: write(file, {**rest, **position}),
            lambda aside: shards.write(aside, values, self.world.rank),
            facts,
            keep,
            check,
        )

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        newest = checkpoint.for_resuming(folder, self.world)
        if newest is None:
            return None
        refuse_another_job(newest, self.settings)
        saved = read(newest.state)
        sharded = resharding.is_sharded(self.trained.model)
        self.world.on_all(lambda: self._load(newest, saved, sharded))
        random = saved["random"]
        if self.world.rank < len(random):
            devices.set_random_state(random[self.world.rank], self.world.device)
        progress = restored(saved["progress"], newest, _machine(self.world))
        return replace(progress, exact=progress.exact and sharded == bool(newest.shards)), newest.path

    def _load(self, newest: Checkpoint, saved: dict[str, Any], sharded: bool) -> None:
        try:
            self.trained.load(resharding.state_of(newest, saved, self.trained.model))
        except SettingsError:
            raise
        except ValueError as error:
            raise resharding.refusal(newest, self.world.size, sharded, str(error)) from None

    def machine(self) -> dict[str, Any]:
        return _machine(self.world)

    def digests(self) -> dict[str, bytes]:
        return digests.of_state(self.trained.state())

    def saved_digests(self, saved: Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        state = read(saved.state)
        return digests.of_state(state, self.trained.state()), state["progress"]


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
    """Facts that have to be equal for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.size,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
