"""The values that a run in TensorFlow trains, by names that another process gives them too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy
import tensorflow as tf

from amp_launcher.tensorflow.devices import World
from amp_launcher.tensorflow.hardware import TensorFlowDevice


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """`amp_launcher.loop.array_state.Tensors`: models, optimizers and random generators."""

    models: Sequence[keras.Model]
    optimizers: Sequence[keras.Optimizer]
    random: Sequence[keras.random.SeedGenerator]

    def arrays(self) -> dict[str, numpy.ndarray]:
        return {name: _array(variable) for name, variable in self.variables().items()}

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        variables = self.variables()
        for one, other, problem in ((variables, saved, "it lacks"), (saved, variables, "it holds")):
            for name in one:
                if name not in other:
                    raise ValueError(f"{problem} {name}")
        for name, variable in variables.items():
            variable.assign(tf.cast(saved[name], variable.dtype))

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


def _array(variable: Any) -> numpy.ndarray:
    values: numpy.ndarray = variable.numpy()
    return values.astype(numpy.float32) if variable.dtype == "bfloat16" else values


def machine(world: World) -> dict[str, Any]:
    """Facts that must be equal for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.devices,
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "device": TensorFlowDevice(world.kind).gpu_name() if world.kind == "cuda" else "cpu",
        "tensorflow": tf.__version__,
    }
