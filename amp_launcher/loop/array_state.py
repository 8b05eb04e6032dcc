"""The state of a run as NumPy arrays, saved and restored by all ranks together.

One file, `state.npz`: arrays by name, and a JSON text with the rest. Nothing in it is code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy

from amp_launcher.loop import checkpoint, digests
from amp_launcher.loop.checkpoint import Checkpoint
from amp_launcher.loop.progress import Progress, refuse_another_job, restored, to_dict
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, plain
from amp_launcher.world.world import ProcessGroup

FILE = "state.npz"
REST = "rest"


class Tensors(Protocol):
    """All that steps change, but for the precision's own state."""

    def arrays(self) -> dict[str, numpy.ndarray]:
        """Every value, by a unique name. bfloat16, which NumPy lacks, as float32, which holds it exactly."""

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        """Set the values that `arrays` gave. Raises `ValueError` for those of another model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayState:
    """`amp_launcher.loop.protocols.State` of frameworks whose values are moved to the host to be saved."""

    tensors: Tensors
    precision: Any
    """The framework's `Precision`."""
    settings: Settings
    world: ProcessGroup
    facts: Mapping[str, Any]
    """Facts that must be equal for the next attempt to repeat this one's arithmetic."""

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        if self.world.rank:
            return None
        arrays = self.tensors.arrays()
        rest = {"progress": to_dict(progress), "precision": self.precision.state_dict()}
        facts = {"settings": plain(self.settings), **self.facts}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(folder, progress.step, FILE, lambda file: write(file, arrays, rest), facts, keep, check)

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        latest = checkpoint.for_resuming(folder, self.world)
        if latest is None:
            return None
        refuse_another_job(latest, self.settings)
        arrays, rest = read(latest.state)
        try:
            self.tensors.restore(arrays)
        except ValueError as error:
            raise SettingsError(f"{latest.path} is of another model than this one: {error}", "run") from None
        self.precision.load_state_dict(rest["precision"])
        return restored(rest["progress"], latest, self.facts), latest.path

    def machine(self) -> dict[str, Any]:
        return dict(self.facts)

    def digests(self) -> dict[str, bytes]:
        return digests.of_arrays(self.tensors.arrays())

    def saved_digests(self, saved: Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        arrays, rest = read(saved.state)
        return digests.of_arrays(arrays), rest["progress"]


def write(file: BinaryIO, arrays: Mapping[str, numpy.ndarray], rest: Mapping[str, Any]) -> None:
    named: dict[str, Any] = {REST: numpy.frombuffer(json.dumps(rest).encode(), numpy.uint8), **arrays}
    numpy.savez(file, **named)


def read(path: Path) -> tuple[dict[str, numpy.ndarray], dict[str, Any]]:
    """The arrays and the rest that `write` wrote."""
    with numpy.load(path, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files if name != REST}
        return arrays, json.loads(saved[REST].tobytes())
