"""The whole state of a run in TensorFlow, saved and taken up again by all ranks together.

One file of NumPy's, `state.npz`: every variable by its name, and beside them JSON with the state that is not in
variables. Nothing in it is code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy
import tensorflow as tf

from recipes.settings import Settings
from recipes.tensorflow_.devices import World
from recipes.tensorflow_.hardware import device_name
from recipes.tensorflow_.precision.base import Precision
from recipes.trainer import checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, restored, to_dict
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
        """Every variable, by a name that is its own in the whole state: of its layer, and of what it is there."""
        found: dict[str, Any] = {}
        for number, model in enumerate(self.models):
            _add(found, f"model.{number}", _of_model(model))
        own = {id(each): name for name, each in found.items()}
        for number, optimizer in enumerate(self.optimizers):
            _add(found, f"optimizer.{number}", _of_optimizer(optimizer, own))
        _add(found, "random", ((str(number), each.state) for number, each in enumerate(self.random)))
        return found


def _add(found: dict[str, Any], group: str, named: Iterable[tuple[str, Any]]) -> None:
    for name, each in named:
        key, count = f"{group}.{name}", 1
        while key in found:
            key, count = f"{group}.{name}#{count}", count + 1
        found[key] = each


def _of_model(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """A model's variables by their paths, and those of its random generators by their layers."""
    names = _layer_names(model)
    generators = {
        id(generator.state): f"{names.get(layer.name, layer.name)}/seed"
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }
    for each in model.variables:
        path = "/".join(names.get(part, part) for part in each.path.split("/"))
        yield generators.get(id(each), path), each


def _of_optimizer(optimizer: keras.Optimizer, own: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """An optimizer's variables, those that belong to a variable of a model by that one's name among `own`."""
    stepped = {each.path.replace("/", "_"): own.get(id(each), each.path) for each in optimizer._trainable_variables}
    for each in optimizer.variables:
        name = each.path.rpartition("/")[2]
        of = max((path for path in stepped if name.startswith(f"{path}_")), key=len, default=None)
        yield name if of is None else f"{stepped[of]}.{name.removeprefix(of).lstrip('_')}", each


def _layer_names(model: keras.Model) -> dict[str, str]:
    """The names of layers that Keras named by their class and by how many the process had made, counted by model."""
    counts: Counter[str] = Counter()
    found = {}
    for layer in model._flatten_layers():
        stem = re.sub(r"_\d+$", "", layer.name)
        if stem.replace("_", "") == type(layer).__name__.lower() and layer.name not in found:
            found[layer.name] = f"{stem}_{counts[stem]}"
            counts[stem] += 1
    return found


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
        beside = {"precision": self.trained.precision.state_dict(), "progress": to_dict(progress)}
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
        for one, other, what in ((variables, values, "does not hold"), (values, variables, "holds")):
            for name in one:
                if name not in other:
                    raise SettingsError(f"{found.path} {what} {name}: it is of another model than this one", "run")
        for name, each in variables.items():
            each.assign(values[name])
        self.trained.precision.load_state_dict(beside["precision"])
        progress = {**beside["progress"], "reports": tuple(beside["progress"]["reports"])}
        return restored(progress, found, _machine(self.world)), found.path


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
