"""The matrix products of compiled code, from the graphs that Inductor compiled, at each run of one.

Dynamic shapes are filled in from the sizes of the inputs. In a backward's graph a product has one operand that was
computed from the gradients which backward was given. If the other is a weight, it is the input's gradient. If its
result is returned as the gradient of a weight, it is that weight's: a backward returns the gradients of its forward's
inputs, in their order. The other operand is looked up in the graph of the forward, whose values have the same names.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from amp_launcher.precision.gemm import Role
from amp_launcher.torch.observe import flops
from amp_launcher.torch.observe.calls import Call, ProductUse
from amp_launcher.torch.observe.graph_text import RANDOM_STATES, TANGENT, Graph, Product, Value, value_of
from amp_launcher.torch.observe.memory import memory_of
from amp_launcher.torch.observe.modules import Modules, Owner
from amp_launcher.torch.observe.roles import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

ATTENTION = ("scaled_dot_product_attention",)
_SYMBOL = re.compile(r"Sym\((?P<name>\w+)\)")


@dataclass(frozen=True, slots=True)
class Shaped:
    """Stands for a tensor where a formula asks for its shape, or whether two numbers are one element of it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One run of a graph."""

    graph: Graph
    memory: Mapping[str, int]
    """Of its inputs, by name."""
    owners: Mapping[str, Owner]
    """Inputs that are weights -> the module that has each."""


class CompiledCalls:
    """The products of compiled code in one step."""

    def __init__(self, modules: Modules) -> None:
        self.kept_ran: set[nn.Module] = set()
        """The modules kept in float32 that ran."""
        self._modules = modules
        self._forwards: list[_Run] = []

    def calls(self, graph: Graph, inputs: Sequence[Any], backward: bool) -> list[Call]:
        """The products of one run with `inputs`, in the graph's order. Raises `flops.Unaccounted` for a size that can't
        be worked out."""
        weights = self._modules.owners_by_memory()
        memory = {
            name: memory_of(given)
            for (name, _), given in zip(graph.inputs, inputs, strict=False)
            if isinstance(given, torch.Tensor) and given.layout == torch.strided
        }
        owners = {name: weights[address] for name, address in memory.items() if address in weights}
        self.kept_ran.update(owner.module for owner in owners.values() if owner.kept)
        run = _Run(graph=graph, memory=memory, owners=owners)
        forward = None
        if graph.backward:
            forward = next((earlier for earlier in reversed(self._forwards) if _is_forward_of(earlier, run)), None)
        else:
            self._forwards.append(run)
        sizes = _symbols(graph, inputs)
        device = next((tensor.device.type for tensor in inputs if isinstance(tensor, torch.Tensor)), "")
        attention = _attention(run, forward)
        calls = [self._call(product, run, forward, sizes, device, backward) for product in graph.products]
        return [
            replace(call, functions=ATTENTION) if product.name in attention else call
            for product, call in zip(graph.products, calls, strict=True)
        ]

    def _call(
        self, product: Product, run: _Run, forward: _Run | None, sizes: Mapping[str, int], device: str, backward: bool
    ) -> Call:
        def shape(value: Value) -> tuple[int, ...]:
            return tuple(_size(size, sizes) for size in value.sizes)

        if product.formula is None:
            raise flops.Unaccounted(f"{product.operation} in compiled code")
        arguments: list[Any] = [
            Shaped(shape(argument), argument.dtype) if isinstance(argument, Value) else argument
            for argument in product.arguments
        ]
        operands = tuple((operand.dtype, shape(operand)) for operand in product.operands)
        owners = [run.owners[operand.root] for operand in product.operands if operand.root in run.owners]
        transposed = {"convolution": 6, "convolution_backward": 7}.get(product.operation)
        functions = flops.functions(product.operation, operands, None if transposed is None else arguments[transposed])
        if len(functions) > 1 and any(isinstance(owner.module, nn.Linear) for owner in owners):
            functions = ("linear",)
        return Call(
            operation=product.operation,
            backward=backward,
            operands=operands,
            flops=product.formula(arguments, tuple(_size(size, sizes) for size in product.out)),
            device=device,
            kept=any(owner.kept for owner in owners) if owners or not self._modules.kept else None,
            functions=functions,
            compiled=True,
            use=_backward(product, run, forward) if run.graph.backward else _forward(product, run, None),
            scales=flops.scales(product.operation, arguments),
        )


def _is_forward_of(forward: _Run, backward: _Run) -> bool:
    """Whether everything that the backward was given, gradients and random states aside, is a value of that forward."""
    given = [name for name, _ in backward.graph.inputs if not name.startswith((TANGENT, *RANDOM_STATES))]
    inputs = [name for name, _ in forward.graph.inputs if not name.startswith(RANDOM_STATES)]
    return (
        all(name in forward.graph.roots for name in given)
        and all(forward.memory.get(name, address) == address for name, address in backward.memory.items())
        and len(backward.graph.returned) == len(inputs)
    )


def _attention(run: _Run, forward: _Run | None) -> set[str]:
    """The products of torch's attention by products. Of its four in a backward three multiply with a tensor that the
    forward multiplied, and the fourth shares its gradient with one of them."""
    names = {product.name for product in run.graph.products if product.attention}
    if forward is None:
        return names
    known = {operand.root for product in forward.graph.products if product.attention for operand in product.operands}
    products = [product for product in run.graph.products if any(operand.gradient for operand in product.operands)]
    direct = [
        product
        for product in products
        if any(forward.graph.roots.get(operand.root, operand.root) in known for operand in product.operands)
    ]
    gradients = {operand.root for product in direct for operand in product.operands if operand.gradient}
    return names.union(
        product.name
        for product in products
        if product in direct or any(operand.root in gradients for operand in product.operands)
    )


def _layer(root: str, run: _Run, forward: _Run | None) -> str | None:
    """The module whose weight a value is; None where it is none."""
    owner = run.owners.get(root)
    if owner is None and forward is not None:
        owner = forward.owners.get(forward.graph.roots.get(root, root))
    return None if owner is None else owner.name


def _forward(product: Product, run: _Run, forward: _Run | None) -> ProductUse:
    layers = [_layer(operand.root, run, forward) for operand in product.operands]
    weights = [index for index, layer in enumerate(layers) if layer is not None]
    if not weights:
        return _use(FORWARD, "", product, range(len(layers)), forward)
    others = [index for index in range(len(layers)) if index != weights[-1]]
    return _use(FORWARD, layers[weights[-1]], product, (*others, weights[-1]), forward)


def _backward(product: Product, run: _Run, forward: _Run | None) -> ProductUse:
    gradients = [index for index, operand in enumerate(product.operands) if operand.gradient]
    if not gradients:
        return _forward(product, run, forward)  # activation checkpointing
    if len(product.operands) == 2 and len(gradients) == 1:
        order = gradients[0], 1 - gradients[0]
        layer = _layer(product.operands[order[1]].root, run, forward)
        if layer is not None:
            return _use(INPUT_GRADIENT, layer, product, order, forward)
        if forward is None:
            return ProductUse()
        returned = (index for index, roots in enumerate(run.graph.returned) if product.name in roots)
        weights = [forward.owners.get(forward.graph.inputs[index][0]) for index in returned]
        if weights and weights[0] is not None:
            return _use(WEIGHT_GRADIENT, weights[0].name, product, order, forward)
    return _use(INPUT_GRADIENT, "", product, range(len(product.operands)), forward)


def _use(role: Role, layer: str | None, product: Product, order: Iterable[int], forward: _Run | None) -> ProductUse:
    """`forward` is that of a backward, which may have rounded an operand already."""
    before = forward.graph.narrowed if forward is not None else {}
    operands = [product.operands[position] for position in order]
    rounded = [operand.narrowed or before.get(operand.root, "") for operand in operands]
    dtypes = [operand.dtype for operand in operands]
    return ProductUse.of(role, layer, list(zip(dtypes, rounded, strict=True)))


def _symbols(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for (_, annotation), given in zip(graph.inputs, inputs, strict=False):
        symbol = _SYMBOL.match(annotation)
        if symbol is not None and isinstance(given, int):
            sizes[symbol["name"]] = given
        elif isinstance(given, torch.Tensor):
            for name, size in zip(value_of(annotation, "").sizes, given.shape, strict=False):
                if name.isidentifier():
                    sizes[name] = size
    return sizes


_FUNCTIONS = {
    "__builtins__": {},
    "Max": max,
    "Min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
}
"""What torch's sizes may call."""


def _size(text: str, symbols: Mapping[str, int]) -> int:
    """A size such as `2*s0 + 1`, as torch wrote it. Raises `flops.Unaccounted` for one that isn't known here."""
    try:
        return int(eval(text, _FUNCTIONS, dict(symbols)))
    except Exception:
        raise flops.Unaccounted(f"size {text} in compiled code") from None
