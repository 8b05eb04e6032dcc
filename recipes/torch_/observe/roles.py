"""The role of each matrix product that ran eagerly, and the linear layer that it belongs to, by the lineage of its
operands: sizes don't tell a gradient's product from another.

In forward one operand is a layer's weight, the other its input. In backward the product that has the weight is the
input's gradient, the product that has the input is the weight's. A forward that activation checkpointing runs again is
forward.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn
from torch.utils import checkpoint

from recipes.precision.call_summary import is_narrow
from recipes.precision.gemm import Role
from recipes.torch_.observe.calls import ProductUse, dtype_name
from recipes.torch_.observe.lineage import Lineage
from recipes.torch_.observe.modules import Modules

FORWARD: Role = "forward"
INPUT_GRADIENT: Role = "input_gradient"
WEIGHT_GRADIENT: Role = "weight_gradient"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Forward:
    """A forward product with a weight."""

    sequence: int
    """Autograd's newest number when it ran."""
    layer: str | None
    weight: tuple[int, ...]
    """Its shape."""


class Roles:
    """The roles of the products of one step."""

    def __init__(self, modules: Modules) -> None:
        self.lineage = Lineage()
        self._modules = modules
        self._layers: dict[int, str | None] = {}
        """The layers of weights that are not those of the running module, by the weight's id."""
        self._by_weight: defaultdict[int, list[_Forward]] = defaultdict(list)
        self._by_input: defaultdict[int, list[_Forward]] = defaultdict(list)
        self._forwards: list[_Forward] = []
        self._without_weight: set[int] = set()
        """Autograd's numbers of forward products without a weight."""
        self._thread = threading.get_ident()  # autograd numbers the nodes of each thread anew

    def forward(self, matrices: Sequence[torch.Tensor], sequence: int) -> ProductUse:
        """Of a forward product; `sequence` is autograd's newest number."""
        running, _ = _running(self._modules.names)
        return self._forward(matrices, sequence, running)

    def backward(self, matrices: Sequence[torch.Tensor], node: int, sequence: int) -> ProductUse:
        """Of a product that ran in backward; `node` is autograd's number of the node that runs, -1 for none."""
        running, again = _running(self._modules.names)
        if again:
            return self._forward(matrices, sequence, running)
        if node in self._without_weight or len(matrices) != 2:
            return self._use(INPUT_GRADIENT, "", matrices, range(len(matrices)))
        origins = [self.lineage.origin(matrix) for matrix in matrices]
        known: list[tuple[Role, defaultdict[int, list[_Forward]]]] = [
            (INPUT_GRADIENT, self._by_weight),
            (WEIGHT_GRADIENT, self._by_input),
        ]
        for role, forwards in known:
            for position, origin in enumerate(origins):
                if origin.memory in forwards:
                    layer = self._layer_of(forwards[origin.memory], node)
                    return self._use(role, layer, matrices, (1 - position, position))
        return self._by_node(matrices, node)

    def _by_node(self, matrices: Sequence[torch.Tensor], node: int) -> ProductUse:
        """Of a product in backward whose operands are not known: selective activation checkpointing computes an input
        again without the product that it was for. A result of the weight's shape is the weight's gradient."""
        nearest = self._at(node)
        if nearest is None:
            return ProductUse()
        result = matrices[0].shape[0], matrices[1].shape[-1]
        if sorted(result) == sorted(nearest.weight):
            order = (0, 1) if result == nearest.weight else (1, 0)
            return self._use(WEIGHT_GRADIENT, nearest.layer, matrices, order)
        return ProductUse(layer=nearest.layer if nearest.sequence == node else None)

    def _forward(self, matrices: Sequence[torch.Tensor], sequence: int, running: nn.Module | None) -> ProductUse:
        numbered = threading.get_ident() == self._thread
        origins = [self.lineage.origin(matrix) for matrix in matrices]
        weights = [index for index, origin in enumerate(origins) if origin.parameter is not None]
        weight, layer, parameter = -1, None, None
        if weights:
            weight = weights[-1]
            parameter = origins[weight].parameter
            assert parameter is not None
            layer = self._layer(parameter, running)
        elif isinstance(running, nn.Linear) and len(matrices) == 2:  # its weight was computed
            weight, layer = 1, self._modules.names[running]
        if weight < 0:
            if numbered:
                self._without_weight.add(sequence)
            return self._use(FORWARD, "", matrices, range(len(matrices)))
        shape = tuple(matrices[weight].shape if parameter is None else parameter.shape)
        forward = _Forward(sequence=sequence, layer=layer, weight=shape)
        if numbered:
            self._forwards.append(forward)
        self._by_weight[origins[weight].memory].append(forward)
        others = [index for index in range(len(matrices)) if index != weight]
        for index in others:
            self._by_input[origins[index].memory].append(forward)
        return self._use(FORWARD, layer, matrices, (*others, weight))

    def _layer(self, parameter: nn.Parameter, running: nn.Module | None) -> str | None:
        """The module that has the parameter: the running one if it does."""
        if running is not None and any(own is parameter for own in running._parameters.values()):
            return self._modules.names[running]
        if id(parameter) not in self._layers:
            owner = self._modules.owners().get(parameter)
            self._layers[id(parameter)] = None if owner is None else owner.name
        return self._layers[id(parameter)]

    def _use(self, role: Role, layer: str | None, matrices: Sequence[torch.Tensor], order: Sequence[int]) -> ProductUse:
        dtypes = tuple(dtype_name(matrices[index].dtype) for index in order)
        narrowed = tuple(self.lineage.origin(matrices[index]).narrowed for index in order)
        emulated = all(narrowed) and not any(is_narrow(dtype) for dtype in dtypes)
        return ProductUse(role=role, layer=layer, formats=dtypes, emulates=narrowed if emulated else ())

    def _layer_of(self, forwards: Sequence[_Forward], node: int) -> str | None:
        """One weight may be of several layers, one input often is: then the running node tells."""
        layers = {forward.layer for forward in forwards}
        if len(layers) == 1:
            return layers.pop()
        nearest = self._at(node)
        return nearest.layer if nearest is not None and nearest.layer in layers else None

    def _at(self, node: int) -> _Forward | None:
        """The first forward product since autograd made the node. A function of one's own has made others within."""
        later = [forward for forward in self._forwards if forward.sequence >= node >= 0]
        return min(later, key=lambda forward: forward.sequence, default=None)


_ENGINE = "_engine_run_backward"


def _running(names: Mapping[nn.Module, str]) -> tuple[nn.Module | None, bool]:
    """The innermost known module on the Python stack, and whether code that runs in backward is a forward again."""
    frame: FrameType | None = sys._getframe(1)
    innermost, again = None, False
    while frame is not None and frame.f_code.co_name != _ENGINE:
        if frame.f_code.co_name == "_call_impl":
            module = frame.f_locals.get("self")
            if innermost is None and isinstance(module, nn.Module) and module in names:
                innermost = module
        again = again or frame.f_code.co_filename == checkpoint.__file__
        frame = frame.f_back
    return innermost, again or innermost is not None
