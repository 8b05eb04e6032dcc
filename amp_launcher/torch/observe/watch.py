"""A cheap watch between the observed steps of a script, which asks for one where something has changed.

At a random step of a few it looks at the layers with weights that are called, and at one of the optimizer's weights;
at each step, at the number of graphs that torch.compile has made. What compiled code calls can't be looked at.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

Look = tuple[Any, ...]


class Watch:
    """What was seen in observed steps, and the first thing that was not."""

    def __init__(self) -> None:
        self.change = ""
        """In words, a change that no observed step has seen yet."""
        self._known: set[Look] = set()
        self._graphs = graphs()

    def learn(self, look: Look | None) -> None:
        """An observed step shows this."""
        if look is not None:
            self._known.add(look)

    def compare(self, look: Look | None) -> None:
        """Another step shows this."""
        if look is not None and look not in self._known and not self.change:
            self.change = _described(look)

    def observed(self) -> None:
        """A span has ended, which saw what there is."""
        self.change = ""
        self._graphs = graphs()

    def learn_graphs(self) -> None:
        """Another graph is no change any more: an observed step was asked for."""
        self._graphs = graphs()

    def recompiled(self, now: int) -> bool:
        """Whether something was compiled since the last span; `now` is `graphs()`."""
        return now != self._graphs


def layer_look(module: nn.Module, inputs: Any) -> Look | None:
    """The dtypes that decide in what a layer multiplies; None for a module without a matrix of its own, and where
    nothing is trained."""
    weight = dict(module._parameters.items()).get("weight")  # TorchScript's has no `get`
    if weight is None or weight.dim() < 2 or not torch.is_grad_enabled():
        return None
    device = weight.device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    first = next((value.dtype for value in inputs if isinstance(value, torch.Tensor)), None)
    return type(module).__name__, cast, weight.dtype, first


def weight_look(optimizer: torch.optim.Optimizer, at: int) -> Look | None:
    """The dtype of one of its weights, and of the gradient."""
    groups = [group["params"] for group in optimizer.param_groups if group["params"]]
    if not groups:
        return None
    weights = groups[at % len(groups)]
    weight = weights[at % len(weights)]
    return None if weight.grad is None else (weight.dtype, weight.grad.dtype)


def weight_looks(optimizer: torch.optim.Optimizer) -> set[Look]:
    """Those of all its weights."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return {(weight.dtype, weight.grad.dtype) for weight in weights if weight.grad is not None}


def graphs() -> int:
    """Graphs that torch.compile has made."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def _described(look: Look) -> str:
    names = [str(part).removeprefix("torch.") for part in look]
    if len(names) == 2:
        return f"a {names[0]} weight has a {names[1]} gradient"
    layer, cast, weight, given = names
    how = "without autocast" if cast == "None" else f"under autocast in {cast}"
    return f"{layer} computes {how} with a {weight} weight and {given} input"
