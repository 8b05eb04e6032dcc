"""What compiled code multiplied, from the graphs that Inductor turned into code and how often each really ran.

A graph's text travels with its code through Inductor's caches. Dynamic shapes are filled in from the sizes of the
inputs at each run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from recipes.torch_.observe import flops
from recipes.torch_.observe.calls import Call
from recipes.torch_.observe.graph_text import Graph, Product, Value, value_of

_SYMBOL = re.compile(r"Sym\((?P<name>\w+)\)")


@dataclass(frozen=True, slots=True)
class Shaped:
    """Stands for a tensor where a formula asks for its shape, or whether two numbers are one element of it."""

    shape: tuple[int, ...]
    dtype: str


def missing() -> str:
    """The private name of torch without which compiled code can't be read; empty where all is there."""
    artifact = _artifact()
    if artifact is None:
        return "torch._inductor.output_code.CompiledFxGraph"
    if "inductor_post_grad_graph_str" not in getattr(artifact, "__annotations__", {}):
        return "CompiledFxGraph.inductor_post_grad_graph_str"
    return ""


@contextlib.contextmanager
def watched(around: Callable[[Any, Sequence[Any]], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Have `around(artifact, inputs)` entered around every run of Inductor's code while this is open, and the compiler
    itself unobserved.
    """
    with contextlib.ExitStack() as stack:
        if (artifact := _artifact()) is not None:
            _enter_around_calls(stack, artifact, around)
        if (compiler := _compiler()) is not None:
            _enter_around_calls(stack, compiler, lambda *given: _unobserved())
        yield


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Without dispatch modes, and without the profiler of this thread.

    Torch disables the modes while it compiles, but not for the forward of a model in DDP (2.13, `CatchErrorsWrapper`).
    There a mode gets the compiler's own tensors, which it can't hand on, and operations that are traced and don't run;
    and a profiler that records shapes crashes where the graph is split by DDP's buckets.
    """
    torch._C._autograd._enable_record_function(False)
    try:
        with _disable_current_modes():
            yield
    finally:
        torch._C._autograd._enable_record_function(True)


def _enter_around_calls(
    stack: contextlib.ExitStack, called: Any, around: Callable[..., contextlib.AbstractContextManager[Any]]
) -> None:
    """Have `around`, given the same arguments, entered around the calls of a class's instances until `stack` closes."""
    original = called.__call__

    @functools.wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        with around(*given):
            return original(*given, **named)

    called.__call__ = call
    stack.callback(setattr, called, "__call__", original)


def _artifact() -> Any:
    try:
        from torch._inductor.output_code import CompiledFxGraph
    except ImportError:
        return None
    return CompiledFxGraph


def _compiler() -> Any:
    try:
        from torch._dynamo.convert_frame import ConvertFrameAssert
    except ImportError:
        return None
    return ConvertFrameAssert


def calls(
    graph: Graph, inputs: Sequence[Any], backward: bool, keeps: bool, owner: Callable[[torch.Tensor], Any]
) -> list[Call]:
    """The graph's matrix operations for one run with `inputs`.

    `owner(tensor)` is the module that the parameter belongs to and whether it is kept in float32, or None; `keeps`
    says that some are. Raises `flops.Unaccounted` where a size can't be worked out.
    """
    sizes = _symbols(graph, inputs)
    owners = {
        name: owner(tensor)
        for (name, _), tensor in zip(graph.inputs, inputs, strict=False)
        if isinstance(tensor, torch.Tensor)
    }
    device = next((each.device.type for each in inputs if isinstance(each, torch.Tensor)), "")
    found = []
    for product in graph.products:
        modules = [owners[each.root] for each in product.operands if owners.get(each.root) is not None]
        call = _call(product, sizes, modules, device, backward)
        found.append(call if modules or not keeps else replace(call, kept=None))
    return found


def _call(
    product: Product,
    sizes: Mapping[str, int],
    modules: Sequence[tuple[torch.nn.Module, bool]],
    device: str,
    backward: bool,
) -> Call:
    def shape(value: Value) -> tuple[int, ...]:
        return tuple(_size(each, sizes) for each in value.sizes)

    arguments = [Shaped(shape(each), each.dtype) if isinstance(each, Value) else each for each in product.arguments]
    out = tuple(_size(each, sizes) for each in product.out)
    operands = tuple((each.dtype, shape(each)) for each in product.operands)
    if product.formula is None:
        raise flops.Unaccounted(f"{product.operation} in compiled code")
    transposed = {"convolution": 6, "convolution_backward": 7}.get(product.operation)
    functions = flops.functions(product.operation, operands, None if transposed is None else arguments[transposed])
    if len(functions) > 1 and any(isinstance(module, torch.nn.Linear) for module, _ in modules):
        functions = ("linear",)
    return Call(
        operation=product.operation,
        backward=backward,
        operands=operands,
        flops=product.formula(arguments, out),
        device=device,
        kept=any(kept for _, kept in modules),
        functions=functions,
        compiled=True,
    )


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


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Div: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
    ast.Pow: lambda left, right: left**right,
}
_NAMED: dict[str, Callable[..., int]] = {
    "Max": max,
    "Min": min,
    "FloorDiv": lambda left, right: left // right,
    "CleanDiv": lambda left, right: left // right,
    "Mod": lambda left, right: left % right,
}


def _size(text: str, symbols: Mapping[str, int]) -> int:
    """A size such as `2*s0 + 1`. Raises `flops.Unaccounted` for an expression that isn't known here."""
    if text.isdigit():
        return int(text)

    def evaluate(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in symbols:
            return symbols[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -evaluate(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](evaluate(node.left), evaluate(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMED:
            return _NAMED[node.func.id](*(evaluate(each) for each in node.args))
        raise flops.Unaccounted(f"size {text} in compiled code")

    return evaluate(ast.parse(text, mode="eval").body)
