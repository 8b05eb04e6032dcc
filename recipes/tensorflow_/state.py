"""The whole state of a run in TensorFlow, saved and taken up again by all ranks together.

One file of NumPy's, `state.npz`: every variable by its number, and beside them JSON with what they are and with the
state that is not in variables. Nothing in it is code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy
import tensorflow as tf

from recipes.settings import Settings
from recipes.tensorflow_.devices import World
from recipes.tensorflow_.hardware import device_name
from recipes.tensorflow_.precision import Precision
from recipes.trainer import checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, taken_up, to_dict
from recipes.typed import SettingsError, plain

FILE = "state.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training changes: models with their random generators, optimizers, and the precision's own state."""

    models: Sequence[keras.Model]
    optimizers: Sequence[keras.Optimizer]
    random: Sequence[keras.random.SeedGenerator]
    precision: Precision

    def variables(self) -> dict[str, Any]:
        """Every variable, by a name that is its own in the whole state."""
        groups = {
            **{f"model.{number}": each.variables for number, each in enumerate(self.models)},
            **{f"optimizer.{number}": each.variables for number, each in enumerate(self.optimizers)},
            **{f"random.{number}": [each.state] for number, each in enumerate(self.random)},
        }
        return {f"{group}.{index}": each for group, found in groups.items() for index, each in enumerate(found)}


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`recipes.trainer.training.State` in TensorFlow."""

    trained: Trained
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        if self.world.rank:
            return None
        values = {name: each.numpy() for name, each in self.trained.variables().items()}
        paths = {name: each.path for name, each in self.trained.variables().items()}
        beside = {"paths": paths, "precision": self.trained.precision.state_dict(), "progress": to_dict(progress)}
        facts = {"settings": plain(self.settings), **_machine(self.world)}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(
            folder, progress.step, FILE, lambda file: write(file, values, beside), facts, keep, check
        )

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        found = checkpoint.for_resuming(folder, self.world)
        if found is None:
            return None
        refuse_another_job(found, self.settings)
        values, beside = read(found.state)
        variables = self.trained.variables()
        if values.keys() != variables.keys():
            raise SettingsError(
                f"{found.path} holds {len(values)} variables, and this model has {len(variables)}", "run"
            )
        for name, each in variables.items():
            each.assign(values[name])
        self.trained.precision.load_state_dict(beside["precision"])
        progress = {**beside["progress"], "reports": tuple(beside["progress"]["reports"])}
        return taken_up(progress, found, _machine(self.world)), found.path


def write(file: BinaryIO, values: Mapping[str, numpy.ndarray], beside: Mapping[str, Any]) -> None:
    """Write arrays, and JSON beside them. NumPy knows no bfloat16, so arrays are written as bytes with their dtypes."""
    dtypes = {name: each.dtype.name for name, each in values.items()}
    shapes = {name: list(each.shape) for name, each in values.items()}
    text = json.dumps({**beside, "dtypes": dtypes, "shapes": shapes})
    content = {name: numpy.frombuffer(numpy.ascontiguousarray(each), numpy.uint8) for name, each in values.items()}
    numpy.savez(file, beside=numpy.frombuffer(text.encode(), numpy.uint8), **content)


def read(path: Path) -> tuple[dict[str, numpy.ndarray], dict[str, Any]]:
    """What `write` wrote."""
    with numpy.load(path, allow_pickle=False) as file:
        beside = json.loads(file["beside"].tobytes())
        values = {
            name: numpy.frombuffer(file[name].tobytes(), tf.as_dtype(dtype).as_numpy_dtype).reshape(
                beside["shapes"][name]
            )
            for name, dtype in beside["dtypes"].items()
        }
    return values, beside


def _machine(world: World) -> dict[str, Any]:
    """What has to be the same for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.devices,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "device": device_name(world.kind) or "cpu",
        "tensorflow": tf.__version__,
    }
