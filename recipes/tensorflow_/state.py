"""The complete state of a run in TensorFlow, saved and restored by all ranks together.

One NumPy file, `state.npz`: every variable by its name, and a JSON text with the state that is in no variable. Nothing
in it is code.
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
from recipes.tensorflow_.hardware import TensorFlowDevice
from recipes.tensorflow_.precision.base import Precision
from recipes.trainer import checkpoint, digests
from recipes.trainer.checkpoint import Checkpoint
from recipes.trainer.progress import Progress, refuse_another_job, restored, to_dict
from recipes.typed import SettingsError, plain

FILE = "state.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training changes: models, optimizers, random generators, and the precision's state."""

    models: Sequence[keras.Model]
    optimizers: Sequence[keras.Optimizer]
    random: Sequence[keras.random.SeedGenerator]
    precision: Precision

    def variables(self) -> dict[str, Any]:
        """Every variable by a name that is unique in the state: of its layer, and of its purpose there."""
        variables: dict[str, Any] = {}
        for number, model in enumerate(self.models):
            _add(variables, f"model.{number}", _of_model(model))
        names = {id(variable): name for name, variable in variables.items()}
        for number, optimizer in enumerate(self.optimizers):
            _add(variables, f"optimizer.{number}", _of_optimizer(optimizer, names))
        _add(variables, "random", ((str(number), generator.state) for number, generator in enumerate(self.random)))
        return variables


def _add(variables: dict[str, Any], group: str, named: Iterable[tuple[str, Any]]) -> None:
    for name, variable in named:
        key, count = f"{group}.{name}", 1
        while key in variables:
            key, count = f"{group}.{name}#{count}", count + 1
        variables[key] = variable


def _of_model(model: keras.Model) -> Iterator[tuple[str, Any]]:
    """A model's variables by their paths, and those of its random generators by their layers."""
    names = _layer_names(model)
    generators = {
        id(generator.state): f"{names.get(layer.name, layer.name)}/seed"
        for layer in model._flatten_layers()
        for generator in layer._seed_generators
    }
    for variable in model.variables:
        path = "/".join(names.get(part, part) for part in variable.path.split("/"))
        yield generators.get(id(variable), path), variable


def _of_optimizer(optimizer: keras.Optimizer, names: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    """An optimizer's variables. One that belongs to a model's variable has that one's name, of `names`, in its own."""
    stepped = {}
    for variable in optimizer._trainable_variables:
        stepped[variable.path.replace("/", "_")] = names.get(id(variable), variable.path)
    for variable in optimizer.variables:
        name = variable.path.rpartition("/")[2]
        of = max((path for path in stepped if name.startswith(f"{path}_")), key=len, default=None)
        yield name if of is None else f"{stepped[of]}.{name.removeprefix(of).lstrip('_')}", variable


def _layer_names(model: keras.Model) -> dict[str, str]:
    """Names by class and a count in the model, for layers that Keras named by class and a count in the process."""
    counts: Counter[str] = Counter()
    names = {}
    for layer in model._flatten_layers():
        stem = re.sub(r"_\d+$", "", layer.name)
        if stem.replace("_", "") == type(layer).__name__.lower() and layer.name not in names:
            names[layer.name] = f"{stem}_{counts[stem]}"
            counts[stem] += 1
    return names


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """`recipes.trainer.protocols.State` in TensorFlow."""

    trained: Trained
    settings: Settings
    world: World

    def save(self, folder: Path, progress: Progress, check: Callable[[], None] = lambda: None) -> Path | None:
        if self.world.rank:
            return None
        values = {name: variable.numpy() for name, variable in self.trained.variables().items()}
        beside = {"precision": self.trained.precision.state_dict(), "progress": to_dict(progress)}
        facts = {"settings": plain(self.settings), **_machine(self.world)}
        keep = self.settings.checkpoint.keep
        return checkpoint.save(
            folder, progress.step, FILE, lambda file: write(file, values, beside), facts, keep, check
        )

    def resume(self, folder: Path) -> tuple[Progress, Path] | None:
        latest = checkpoint.for_resuming(folder, self.world)
        if latest is None:
            return None
        refuse_another_job(latest, self.settings)
        values, beside = read(latest.state)
        variables = self.trained.variables()
        for one, other, what in ((variables, values, "does not hold"), (values, variables, "holds")):
            for name in one:
                if name not in other:
                    raise SettingsError(f"{latest.path} {what} {name}: it is of another model than this one", "run")
        for name, variable in variables.items():
            variable.assign(values[name])
        self.trained.precision.load_state_dict(beside["precision"])
        progress = {**beside["progress"], "reports": tuple(beside["progress"]["reports"])}
        return restored(progress, latest, _machine(self.world)), latest.path

    def machine(self) -> dict[str, Any]:
        return _machine(self.world)

    def digests(self) -> dict[str, bytes]:
        values = {name: variable.numpy() for name, variable in self.trained.variables().items()}
        return digests.of_arrays(values)

    def saved_digests(self, found: Checkpoint) -> tuple[dict[str, bytes], Mapping[str, Any]]:
        values, beside = read(found.state)
        return digests.of_arrays(values), beside["progress"]


def write(file: BinaryIO, values: Mapping[str, numpy.ndarray], beside: Mapping[str, Any]) -> None:
    """Write arrays and JSON. NumPy has no bfloat16, so arrays are written as bytes, their dtypes in the JSON."""
    dtypes = {name: array.dtype.name for name, array in values.items()}
    shapes = {name: list(array.shape) for name, array in values.items()}
    text = json.dumps({**beside, "dtypes": dtypes, "shapes": shapes})
    content = {name: numpy.frombuffer(numpy.ascontiguousarray(array), numpy.uint8) for name, array in values.items()}
    numpy.savez(file, beside=numpy.frombuffer(text.encode(), numpy.uint8), **content)


def read(path: Path) -> tuple[dict[str, numpy.ndarray], dict[str, Any]]:
    """Read what `write` wrote."""
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
    """What must be equal for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.devices,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "device": TensorFlowDevice(world.kind).gpu_name() if world.kind == "cuda" else "cpu",
        "tensorflow": tf.__version__,
    }
