"""The role of each matrix product in compiled code, and the linear layer that it belongs to.

In a backward's graph a product has one operand that was computed from the gradients which backward was given. If the
other is a weight, it is the input's gradient. If its result is returned as the gradient of a weight, it is that
weight's: a backward returns the gradients of its forward's inputs, in their order. What the other operand was is looked
up in the graph of the forward, whose values have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recipes.precision.call_summary import is_narrow
from recipes.precision.gemm import Role
from recipes.torch_.observe.calls import Told
from recipes.torch_.observe.graph_text import RANDOM_STATES, TANGENT, Graph, Product
from recipes.torch_.observe.roles import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One run of a graph."""

    graph: Graph
    memory: Mapping[str, int]
    """Of its inputs, by name."""
    layers: Mapping[str, str]
    """Inputs that are weights -> the module that has each."""


class CompiledRoles:
    """The roles of the products of compiled code in one step."""

    def __init__(self, names: Mapping[nn.Module, str]) -> None:
        self._names = names
        self._forwards: list[_Run] = []

    def tell(self, graph: Graph, inputs: Sequence[Any]) -> list[Told]:
        """Of the products of one run with `inputs`, in the graph's order."""
        weights = self._weights()
        memory = {
            name: given.untyped_storage()._cdata
            for (name, _), given in zip(graph.inputs, inputs, strict=False)
            if isinstance(given, torch.Tensor) and given.layout == torch.strided
        }
        layers = {name: weights[address] for name, address in memory.items() if address in weights}
        run = _Run(graph=graph, memory=memory, layers=layers)
        if not graph.backward:
            self._forwards.append(run)
            return [_forward(product, run, None) for product in graph.products]
        forward = next((each for each in reversed(self._forwards) if _is_forward_of(each, run)), None)
        return [_backward(product, run, forward) for product in graph.products]

    def _weights(self) -> dict[int, str]:
        """The memory of each parameter -> the module that has it, a linear layer before others."""
        found: dict[int, str] = {}
        for module, name in sorted(self._names.items(), key=lambda each: isinstance(each[0], nn.Linear)):
            for parameter in module._parameters.values():
                if parameter is not None and not hasattr(parameter, "to_local"):  # a shard is not what is multiplied
                    found[parameter.untyped_storage()._cdata] = name
        return found


def _is_forward_of(forward: _Run, backward: _Run) -> bool:
    """Whether everything that the backward was given, gradients and random states aside, is a value of that forward."""
    given = [name for name, _ in backward.graph.inputs if not name.startswith((TANGENT, *RANDOM_STATES))]
    inputs = [name for name, _ in forward.graph.inputs if not name.startswith(RANDOM_STATES)]
    return (
        all(name in forward.graph.roots for name in given)
        and all(forward.memory.get(name, address) == address for name, address in backward.memory.items())
        and len(backward.graph.returned) == len(inputs)
    )


def _layer(root: str, run: _Run, forward: _Run | None) -> str | None:
    """The module whose weight a value is; None where it is none."""
    if root in run.layers or forward is None:
        return run.layers.get(root)
    return forward.layers.get(forward.graph.roots.get(root, root))


def _forward(product: Product, run: _Run, forward: _Run | None) -> Told:
    layers = [_layer(each.root, run, forward) for each in product.operands]
    weights = [index for index, layer in enumerate(layers) if layer is not None]
    if not weights:
        return _told(FORWARD, "", product, range(len(layers)))
    others = [index for index in range(len(layers)) if index != weights[-1]]
    return _told(FORWARD, layers[weights[-1]], product, (*others, weights[-1]))


def _backward(product: Product, run: _Run, forward: _Run | None) -> Told:
    gradients = [index for index, each in enumerate(product.operands) if each.gradient]
    if not gradients:
        return _forward(product, run, forward)  # activation checkpointing
    if len(product.operands) == 2 and len(gradients) == 1:
        order = gradients[0], 1 - gradients[0]
        layer = _layer(product.operands[order[1]].root, run, forward)
        if layer is not None:
            return _told(INPUT_GRADIENT, layer, product, order)
        if forward is None:
            return Told()
        returned = (index for index, roots in enumerate(run.graph.returned) if product.name in roots)
        weights = [forward.layers.get(forward.graph.inputs[index][0]) for index in returned]
        if weights and weights[0] is not None:
            return _told(WEIGHT_GRADIENT, weights[0], product, order)
    return _told(INPUT_GRADIENT, "", product, range(len(product.operands)))


def _told(role: Role, layer: str | None, product: Product, order: Iterable[int]) -> Told:
    operands = [product.operands[each] for each in order]
    narrowed = tuple(each.narrowed for each in operands)
    emulated = all(narrowed) and not any(is_narrow(each.dtype) for each in operands)
    return Told(
        role=role,
        layer=layer,
        formats=tuple(each.dtype for each in operands),
        emulates=narrowed if emulated else (),
    )
