"""The role of each matrix product that ran eagerly, and the linear layer that it belongs to, by the lineage of its
operands: sizes don't tell a gradient's product from another.

In forward one operand is a layer's weight, the other its input. In backward the product that has the weight is the
input's gradient, the product that has the input is the weight's. A forward that activation checkpointing runs again is
forward.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from amp_launcher.precision.gemm import Role
from amp_launcher.torch.observe.calls import ProductUse, dtype_name
from amp_launcher.torch.observe.lineage import Lineage
from amp_launcher.torch.observe.modules import Modules, Running
from amp_launcher.torch.uncompiled import is_traced

FORWARD: Role = "forward"
INPUT_GRADIENT: Role = "input_gradient"
WEIGHT_GRADIENT: Role = "weight_gradient"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Numbered:
    """A product whose autograd node has a number: a forward one, or one of a backward that another will go through."""

    call: int
    """Index of the forward call that it belongs to, -1 where none was found."""
    layer: str | None
    """None where it isn't known; the outermost module's name is empty."""
    weight: tuple[int, ...] | None
    """The shape of its weight, empty for a forward product without one, None where that isn't known."""
    own: bool
    """Whether the thread that the step began in ran it."""


class Roles:
    """The roles of the products of one step."""

    def __init__(self, modules: Modules, lineage: Lineage) -> None:
        self.lineage = lineage
        self._modules = modules
        self._layers: dict[int, str | None] = {}
        """The layers of weights that are not those of the running module, by the weight's id."""
        self._by_weight: defaultdict[int, set[str | None]] = defaultdict(set)
        """Layers of forward products, by the memory of their weight; below by that of their other operands."""
        self._by_input: defaultdict[int, set[str | None]] = defaultdict(set)
        self._numbered: dict[int, _Numbered] = {}
        """By autograd's newest number when the product ran: its node exists before it is dispatched. The first product
        of a number has the node; later ones have no gradients."""
        self._thread = threading.get_ident()  # autograd numbers the nodes of each thread anew

    def record(self, matrices: Sequence[torch.Tensor], call: int, running: Running) -> tuple[ProductUse, int]:
        """The use of the product that is about to run as number `call` of the step's calls, and the index of the
        forward call that it belongs to, -1 where none was found."""
        newest = torch.autograd._get_sequence_nr() - 1
        if not in_backward():
            return self._forward(matrices, call, newest, running.module), call
        current = torch._C._current_autograd_node()
        node = -1 if current is None else current._sequence_nr()
        origin = self._numbered[node].call if node in self._numbered else -1
        if running.again:
            return self._forward(matrices, origin, newest, running.module), origin
        use = self._backward(matrices, node)
        if torch.is_grad_enabled():  # a second backward will go through this one
            self._number(newest, origin)
        return use, origin

    def _forward(
        self, matrices: Sequence[torch.Tensor], call: int, newest: int, running: nn.Module | None
    ) -> ProductUse:
        origins = [self.lineage.origin(matrix) for matrix in matrices]
        weights = [index for index, origin in enumerate(origins) if origin.parameter is not None]
        weight, layer, shape = -1, None, ()
        if weights:
            weight = weights[-1]
            parameter = origins[weight].parameter
            assert parameter is not None
            layer, shape = self._layer(parameter, running), tuple(parameter.shape)
        elif isinstance(running, nn.Linear) and len(matrices) == 2:  # its weight was computed
            weight, layer, shape = 1, self._modules.names[running], tuple(matrices[1].shape)
        others = [index for index in range(len(matrices)) if index != weight]
        if weight < 0:
            layer = ""
        else:
            self._by_weight[origins[weight].memory].add(layer)
            for index in others:
                self._by_input[origins[index].memory].add(layer)
        self._number(newest, call, layer, shape)
        return self._use(FORWARD, layer, matrices, others if weight < 0 else (*others, weight))

    def _number(self, newest: int, call: int, layer: str | None = None, weight: tuple[int, ...] | None = None) -> None:
        """Record the first product of a number. The step's own thread comes before others, which have the same numbers
        for nodes of their own."""
        own = threading.get_ident() == self._thread
        known = self._numbered.get(newest)
        if known is None or (own and not known.own):
            layer, weight = (layer, weight) if own else (None, None)  # a node's number doesn't show its thread
            self._numbered[newest] = _Numbered(call=call, layer=layer, weight=weight, own=own)

    def _backward(self, matrices: Sequence[torch.Tensor], node: int) -> ProductUse:
        """Of a product that ran in backward; `node` is autograd's number of the node that runs, -1 for none."""
        if len(matrices) != 2 or (node in self._numbered and self._numbered[node].weight == ()):
            return self._use(INPUT_GRADIENT, "", matrices, range(len(matrices)))
        origins = [self.lineage.origin(matrix) for matrix in matrices]
        known: list[tuple[Role, defaultdict[int, set[str | None]]]] = [
            (INPUT_GRADIENT, self._by_weight),
            (WEIGHT_GRADIENT, self._by_input),
        ]
        for role, layers in known:
            for position, origin in enumerate(origins):
                if origin.memory in layers:
                    layer = self._layer_among(layers[origin.memory], node)
                    return self._use(role, layer, matrices, (1 - position, position))
        return self._by_node(matrices, node)

    def _by_node(self, matrices: Sequence[torch.Tensor], node: int) -> ProductUse:
        """Of a product in backward whose operands are not known: selective activation checkpointing computes an input
        again without the product that it was for. A result of the weight's shape is the weight's gradient."""
        nearest = self._nearest(node)
        if nearest is None or nearest.weight is None:
            return ProductUse()
        result = matrices[0].shape[0], matrices[1].shape[-1]
        if sorted(result) == sorted(nearest.weight):
            order = (0, 1) if result == nearest.weight else (1, 0)
            return self._use(WEIGHT_GRADIENT, nearest.layer, matrices, order)
        return ProductUse(layer=nearest.layer if nearest is self._numbered.get(node) else None)

    def _layer(self, parameter: nn.Parameter, running: nn.Module | None) -> str | None:
        """The module that has the parameter: the running one if it does."""
        if running is not None and any(own is parameter for own in running._parameters.values()):
            return self._modules.names[running]
        if id(parameter) not in self._layers:
            owner = self._modules.owners().get(parameter)
            self._layers[id(parameter)] = None if owner is None else owner.name
        return self._layers[id(parameter)]

    def _use(self, role: Role, layer: str | None, matrices: Sequence[torch.Tensor], order: Sequence[int]) -> ProductUse:
        ordered = [matrices[index] for index in order]
        operands = [(dtype_name(matrix.dtype), self.lineage.origin(matrix).narrowed) for matrix in ordered]
        return ProductUse.of(role, layer, operands)

    def _layer_among(self, layers: set[str | None], node: int) -> str | None:
        """One weight may be of several layers, one input often is: then the running node tells."""
        if len(layers) == 1:
            return next(iter(layers))
        nearest = self._nearest(node)
        return nearest.layer if nearest is not None and nearest.layer in layers else None

    def _nearest(self, node: int) -> _Numbered | None:
        """The first forward product with a weight since autograd made the node. A function of one's own has made others
        within."""
        later = [number for number, product in self._numbered.items() if number >= node >= 0 and product.weight]
        return self._numbered[min(later)] if later else None


def has_gradients() -> bool:
    """Whether what runs may be trained: not what `torch.jit.trace` runs to record it."""
    return torch.is_grad_enabled() and not is_traced()


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def in_transform() -> bool:
    """Whether what runs is a function that `torch.func` transforms, as `grad` does and `vmap`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def in_thread_of_autograd() -> bool:
    """Whether autograd started this thread, as it does for a GPU's part of a backward. Python knows no such thread
    until something asks for the current one."""
    return in_backward() and all(
        isinstance(thread, threading._DummyThread)
        for thread in threading.enumerate()
        if thread.ident == threading.get_ident()
    )
