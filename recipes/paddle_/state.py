"""The whole state of a run in Paddle: one file of NumPy's, with JSON beside the arrays. Nothing in it is code.

No recipe in Paddle draws random numbers after its initial weights, so that none are in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy
import paddle
from paddle import nn

from recipes.paddle_.devices import World, device_line
from recipes.paddle_.precision import Precision
from recipes.settings import Settings
from recipes.trainer import checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, taken_up, to_dict
from recipes.typed import plain

FILE = "state.npz"


class Held(Protocol):
    """Everything that steps change and that is no number of the precision's own."""

    def take(self) -> dict[str, numpy.ndarray]:
        """Every value, by a name of its own."""

    def put(self, saved: Mapping[str, numpy.ndarray]) -> None:
        """Take them up again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Eager:
    """The tensors of a model and its optimizer: weights, accumulators and masters."""

    model: nn.Layer
    optimizer: paddle.optimizer.Optimizer

    def take(self) -> dict[str, numpy.ndarray]:
        return {name: _array(each) for name, each in self._tensors().items()}

    def put(self, saved: Mapping[str, numpy.ndarray]) -> None:
        for name, each in self._tensors().items():
            each.set_value(paddle.to_tensor(saved[name]).astype(each.dtype))

    def _tensors(self) -> dict[str, paddle.Tensor]:
        found = {f"model.{name}": each for name, each in self.model.state_dict().items()}
        for name, each in self.optimizer.state_dict().items():
            inner = each if isinstance(each, Mapping) else {"": each}
            for key, value in inner.items():
                if isinstance(value, paddle.Tensor):
                    found[f"optimizer.{name}.{key}"] = value
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`recipes.trainer.training.State` in Paddle."""

    held: Held
    precision: Precision
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        arrays = self.held.take()
        rest = {"progress": to_dict(progress), "precision": self.precision.state_dict()}
        facts = {"settings": plain(self.settings), **self._machine()}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(folder, progress.step, FILE, lambda file: write(file, arrays, rest), facts, keep, check)

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        found = checkpoint.for_resuming(folder, self.world)
        if found is None:
            return None
        refuse_another_job(found, self.settings)
        with numpy.load(found.state, allow_pickle=False) as saved:
            self.held.put(saved)
            rest = json.loads(bytes(saved["rest"]).decode())
        self.precision.load_state_dict(rest["precision"])
        return taken_up(rest["progress"], found, self._machine()), found.path

    def _machine(self) -> dict[str, Any]:
        return {"device": device_line(self.world.kind), "paddle": paddle.__version__}


def write(file: BinaryIO, arrays: Mapping[str, numpy.ndarray], rest: Mapping[str, Any]) -> None:
    text = numpy.frombuffer(json.dumps(rest).encode(), numpy.uint8)
    numpy.savez(file, rest=text, **dict(arrays))


def _array(tensor: paddle.Tensor) -> numpy.ndarray:
    """The values; NumPy has no bfloat16, and float32 holds them exactly."""
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()
