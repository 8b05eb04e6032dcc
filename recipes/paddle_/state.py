"""The complete state of a run in Paddle: one NumPy file with arrays and a JSON text. Nothing in it is code.

Random numbers of a step follow from the seed and the step's position, so that the state has no random generators.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy
import paddle
from paddle import nn

from recipes.paddle_.devices import World, device_line
from recipes.paddle_.precision.base import Precision
from recipes.settings import Settings
from recipes.trainer import checkpoint, digests
from recipes.trainer.checkpoint import Checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, restored, to_dict
from recipes.typed import SettingsError, plain

FILE = "state.npz"
ACCUMULATOR, MASTER = "accumulator.", "master."
"""Prefixes of the names of an optimizer's tensors."""


class Tensors(Protocol):
    """All that steps change, but for the precision's own state."""

    def arrays(self) -> dict[str, numpy.ndarray]:
        """Every value, by a unique name."""

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        """Set the values that `arrays` gave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerTensors:
    """The tensors of a model and its optimizer: weights, accumulators and masters, by the parameters' names in the
    model. Paddle's own names count the layers that the process has made."""

    model: nn.Layer
    optimizer: paddle.optimizer.Optimizer

    def arrays(self) -> dict[str, numpy.ndarray]:
        names = {parameter.name: name for name, parameter in self.model.named_parameters()}
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        for kind, by_parameter in self.optimizer._accumulators.items():
            tensors.update({f"{ACCUMULATOR}{kind}.{names[own]}": tensor for own, tensor in by_parameter.items()})
        for own, master in getattr(self.optimizer, "_master_weights", {}).items():
            tensors[f"{MASTER}{names[own]}"] = master
        return {name: _array(tensor) for name, tensor in tensors.items()}

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        """Raises `SettingsError` for another model's. An optimizer that has taken no step yet has no tensors: Paddle
        keeps the values until it makes them."""
        for name, weight in self._weights().items():
            if f"model.{name}" not in saved:
                raise SettingsError(f"the checkpoint holds no {name} of this model: it is of another one", "run")
            weight.set_value(paddle.to_tensor(saved[f"model.{name}"]).astype(weight.dtype))
        parameters = dict(self.model.named_parameters())
        state: dict[str, Any] = {}
        masters = {}
        for key in saved:
            if key.startswith(MASTER):
                own = parameters[key.removeprefix(MASTER)].name
                masters[own] = paddle.to_tensor(saved[key])
                masters[own].name = f"{own}_fp32_master_0"
            elif key.startswith(ACCUMULATOR):
                kind, _, name = key.removeprefix(ACCUMULATOR).partition(".")
                existing = self.optimizer._accumulators.get(kind, {}).get(parameters[name].name)
                own = f"{parameters[name].name}_{kind}_0" if existing is None else existing.name
                state[own] = paddle.to_tensor(saved[key])
        self.optimizer.set_state_dict({**state, "master_weights": masters} if masters else state)

    def _weights(self) -> dict[str, paddle.Tensor]:
        """Parameters and buffers themselves: with a `save_dtype` the state_dict has copies."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`recipes.trainer.protocols.State` in Paddle."""

    tensors: Tensors
    precision: Precision
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        if self.world.rank:
            return None
        arrays = self.tensors.arrays()
        rest = {"progress": to_dict(progress), "precision": self.precision.state_dict()}
        facts = {"settings": plain(self.settings), **self.machine()}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(folder, progress.step, FILE, lambda file: write(file, arrays, rest), facts, keep, check)

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        latest = checkpoint.for_resuming(folder, self.world)
        if latest is None:
            return None
        refuse_another_job(latest, self.settings)
        with numpy.load(latest.state, allow_pickle=False) as saved:
            self.tensors.restore(saved)
            rest = json.loads(bytes(saved["rest"]).decode())
        self.precision.load_state_dict(rest["precision"])
        return restored(rest["progress"], latest, self.machine()), latest.path

    def digests(self) -> dict[str, bytes]:
        return digests.of_arrays(self.tensors.arrays())

    def saved_digests(self, found: Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        with numpy.load(found.state, allow_pickle=False) as saved:
            rest = json.loads(bytes(saved["rest"]).decode())
            return digests.of_arrays({name: saved[name] for name in saved.files if name != "rest"}), rest["progress"]

    def machine(self) -> dict[str, Any]:
        """What must be equal for the next attempt to repeat this one's arithmetic."""
        return {
            "world_size": self.world.size,
            "device": device_line(self.world.kind),
            "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),  # as Paddle reads it, with its own default
            "paddle": paddle.__version__,
        }


def write(file: BinaryIO, arrays: Mapping[str, numpy.ndarray], rest: Mapping[str, Any]) -> None:
    text = numpy.frombuffer(json.dumps(rest).encode(), numpy.uint8)
    numpy.savez(file, rest=text, **dict(arrays))


def _array(tensor: paddle.Tensor) -> numpy.ndarray:
    """The values; NumPy has no bfloat16, and float32 holds them exactly."""
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()
