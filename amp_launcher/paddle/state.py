"""The values that a run in Paddle trains eagerly, by names that another process gives them too.

Random numbers of a step follow from the seed and the step's position, so that the state has no random generators.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import paddle
from paddle import nn

from amp_launcher.paddle.devices import World, device_line

ACCUMULATOR, MASTER = "accumulator.", "master."
"""Prefixes of the names of an optimizer's tensors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EagerTensors:
    """`amp_launcher.loop.array_state.Tensors`: the weights of a model, and its optimizer's accumulators and masters, by
    the parameters' names in the model. Paddle's own names count the layers that the process has made."""

    model: nn.Layer
    optimizer: paddle.optimizer.Optimizer

    def arrays(self) -> dict[str, numpy.ndarray]:
        names = {parameter.name: name for name, parameter in self.model.named_parameters()}
        masters = getattr(self.optimizer, "_master_weights", {})
        names |= {
            master.name: names[own] for own, master in masters.items()
        }  # accumulators are theirs, where there are
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        for kind, by_parameter in self.optimizer._accumulators.items():
            tensors.update({f"{ACCUMULATOR}{kind}.{names[own]}": tensor for own, tensor in by_parameter.items()})
        for own, master in masters.items():
            tensors[f"{MASTER}{names[own]}"] = master
        return {name: _array(tensor) for name, tensor in tensors.items()}

    def restore(self, saved: Mapping[str, numpy.ndarray]) -> None:
        """An optimizer that has taken no step yet has no tensors: Paddle keeps the values until it makes them."""
        for name, weight in self._weights().items():
            if f"model.{name}" not in saved:
                raise ValueError(f"it lacks {name}")
            weight.set_value(paddle.to_tensor(saved[f"model.{name}"]).astype(weight.dtype))
        names = {name: parameter.name for name, parameter in self.model.named_parameters()}
        state: dict[str, Any] = {}
        masters: dict[str, Any] = {}
        for key in saved:
            if key.startswith(MASTER):
                own = names[key.removeprefix(MASTER)]
                existing = getattr(self.optimizer, "_master_weights", {}).get(own)
                masters[own] = paddle.to_tensor(saved[key])
                masters[own].name = f"{own}_fp32_master_0" if existing is None else existing.name
        for key in saved:
            if key.startswith(ACCUMULATOR):
                kind, _, name = key.removeprefix(ACCUMULATOR).partition(".")
                own = masters[names[name]].name if names[name] in masters else names[name]
                existing = self.optimizer._accumulators.get(kind, {}).get(own)
                state[f"{own}_{kind}_0" if existing is None else existing.name] = paddle.to_tensor(saved[key])
        self.optimizer.set_state_dict({**state, "master_weights": masters} if masters else state)

    def _weights(self) -> dict[str, paddle.Tensor]:
        """Parameters and buffers themselves: with a `save_dtype` the state_dict has copies."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}


def machine(world: World) -> dict[str, Any]:
    """Facts that must be equal for the next attempt to repeat this one's arithmetic."""
    return {
        "world_size": world.size,
        "device": device_line(world.kind),
        "threads": int(os.environ.get("OMP_NUM_THREADS", "1")),  # as Paddle reads it, with its own default
        "paddle": paddle.__version__,
    }


def _array(tensor: paddle.Tensor) -> numpy.ndarray:
    """The values; NumPy has no bfloat16, and float32 holds them exactly."""
    return (tensor.astype("float32") if tensor.dtype == paddle.bfloat16 else tensor).numpy()
