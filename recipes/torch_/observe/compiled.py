"""What compiled code multiplied, from the graphs that Inductor turned into code and how often each really ran.

A graph's text travels with its code through Inductor's caches, and it is Python: the calls, with the dtype and the
shape of every value as annotations. Dynamic shapes are filled in from the sizes of the inputs at each run.
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

from recipes.torch_.observe import flops
from recipes.torch_.observe.calls import Call

DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "c64": "complex64"}
_ANNOTATION = re.compile(r"(?P<dtype>[a-z]+\d+\w*)\[(?P<shape>[^\]]*)\]")
_SYMBOL = re.compile(r"Sym\((?P<name>\w+)\)")
_SAME_DATA = frozenset(
    "convert_element_type _to_copy clone permute transpose t view reshape expand squeeze unsqueeze contiguous".split()
)
"""Operations whose output is their first operand in another dtype or arrangement."""
_RANDOM_STATE = {"higher_order.run_and_save_rng_state": 0, "higher_order.run_with_rng_state": 1}
"""Operators around an operation -> its position in their arguments; its own arguments follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One value of a graph: sizes are numbers, or text over the graph's size symbols."""

    dtype: str
    sizes: tuple[str, ...]
    of_input: str = ""
    """The graph's input that it is a cast or view of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One matrix operation of a graph."""

    operation: str
    operands: tuple[Value, ...]
    arguments: tuple[Any, ...]
    out: tuple[str, ...]
    formula: flops.Formula | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    inputs: tuple[tuple[str, str], ...]
    """Name and annotation, in the order in which the code is given them."""
    products: tuple[Product, ...]
    unaccounted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shaped:
    """Stands for a tensor where a formula asks for its shape."""

    shape: tuple[int, ...]


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
    """Have `around(artifact, inputs)` entered around every run of Inductor's code while this is open."""
    artifact = _artifact()
    if artifact is None:
        yield
        return
    original = artifact.__call__

    @functools.wraps(original)
    def call(self: Any, inputs: Sequence[Any]) -> Any:
        with around(self, inputs):
            return original(self, inputs)

    artifact.__call__ = call
    try:
        yield
    finally:
        artifact.__call__ = original


def _artifact() -> Any:
    try:
        from torch._inductor.output_code import CompiledFxGraph
    except ImportError:
        return None
    return CompiledFxGraph


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Graph:
    """The inputs and matrix operations of a graph's text. Raises `SyntaxError` where it isn't Python."""
    # The graph of a forward without gradients is a class by a name that isn't one: <lambda>.
    module = ast.parse(text.replace("class <lambda>(", "class graph(", 1)).body[0]
    assert isinstance(module, ast.ClassDef)
    forward = next(each for each in module.body if isinstance(each, ast.FunctionDef) and each.name == "forward")
    inputs = tuple((each.arg, _text(each.annotation)) for each in forward.args.args[1:])
    values = {name: _value(annotation, of_input=name) for name, annotation in inputs}
    products, unaccounted = [], []
    for statement in forward.body:
        if isinstance(statement, ast.AnnAssign):
            target, annotation = statement.target, _text(statement.annotation)
        elif isinstance(statement, ast.Assign):
            target, annotation = statement.targets[0], ""
        else:
            continue
        call = _without_random_state(statement.value)
        name = _called(call)
        if not isinstance(target, ast.Name) or not isinstance(call, ast.Call) or not name:
            _alias(target, statement.value, annotation, values)
            continue
        namespace, _, operation = name.rpartition(".")
        first = values.get(call.args[0].id) if call.args and isinstance(call.args[0], ast.Name) else None
        same = first.of_input if first is not None and operation in _SAME_DATA else ""
        values[target.id] = _value(annotation, of_input=same)
        formula = _formula(namespace, operation)
        if formula is not None:
            products.append(_product(operation, formula, call, values, values[target.id]))
        elif namespace not in flops.KNOWN_NAMESPACES or flops.is_matrix_operation(operation):
            unaccounted.append(f"{name} in compiled code")
    return Graph(inputs=inputs, products=tuple(products), unaccounted=tuple(unaccounted))


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
        modules = [owners[each.of_input] for each in product.operands if owners.get(each.of_input) is not None]
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

    arguments = [Shaped(shape(each)) if isinstance(each, Value) else each for each in product.arguments]
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


def _formula(namespace: str, operation: str) -> tuple[tuple[int, ...], flops.Formula | None] | None:
    """Positions of the matrices and the formula of an operation that is known to multiply them."""
    if namespace == "aten":
        return flops.FORMULAS.get(operation)
    return flops.higher_order(operation) if namespace == "higher_order" else None


def _product(
    operation: str,
    known: tuple[tuple[int, ...], flops.Formula | None],
    call: ast.Call,
    values: Mapping[str, Value],
    out: Value,
) -> Product:
    arguments = tuple(_argument(each, values) for each in call.args)
    positions, formula = known
    operands = tuple(arguments[each] for each in positions if isinstance(arguments[each], Value))
    return Product(operation=operation, operands=operands, arguments=arguments, out=out.sizes, formula=formula)


def _argument(node: ast.expr, values: Mapping[str, Value]) -> Any:
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_argument(each, values) for each in node.elts]
    return node.value if isinstance(node, ast.Constant) else None


def _alias(target: ast.expr, value: ast.expr | None, annotation: str, values: dict[str, Value]) -> None:
    """`x = y`, `x = y[0]`, `x = None` and arithmetic on sizes."""
    if isinstance(target, ast.Name) and not (isinstance(value, ast.Constant) and value.value is None):
        values[target.id] = _value(annotation)


def _called(node: ast.expr | None) -> str:
    """`aten.mm` for a call of `torch.ops.aten.mm.default`, empty for what is no operation."""
    if not isinstance(node, ast.Call):
        return ""
    parts = ast.unparse(node.func).split(".")
    if parts[:2] != ["torch", "ops"] or len(parts) < 4:
        return ""
    return f"{parts[2]}.{parts[3]}"


def _without_random_state(node: ast.expr | None) -> ast.expr | None:
    """The operation that the compiler has computed again from the same random state, as attention is."""
    position = _RANDOM_STATE.get(_called(node))
    if position is None or not isinstance(node, ast.Call):
        return node
    return ast.Call(func=node.args[position], args=node.args[position + 1 :], keywords=node.keywords)


def _text(annotation: ast.expr | None) -> str:
    return annotation.value if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str) else ""


def _value(annotation: str, of_input: str = "") -> Value:
    match = _ANNOTATION.match(annotation)
    if match is None:
        return Value(dtype="", sizes=(), of_input=of_input)
    sizes = tuple(each.strip() for each in _split(match["shape"]) if each.strip())
    return Value(dtype=DTYPES.get(match["dtype"], match["dtype"]), sizes=sizes, of_input=of_input)


def _split(text: str) -> list[str]:
    """At the commas outside parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _symbols(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for (_, annotation), given in zip(graph.inputs, inputs, strict=False):
        symbol = _SYMBOL.match(annotation)
        if symbol is not None and isinstance(given, int):
            sizes[symbol["name"]] = given
        elif isinstance(given, torch.Tensor):
            for name, size in zip(_value(annotation).sizes, given.shape, strict=False):
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
