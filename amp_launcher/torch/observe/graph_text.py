"""A graph that Inductor turned into code, read from its text, which is Python: the calls, with the dtype and the shape
of every value as annotations.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from amp_launcher.precision.call_summary import is_narrow
from amp_launcher.torch.observe import flops
from amp_launcher.torch.observe.graph_attention import AttentionProducts
from amp_launcher.torch.observe.lineage import SAME_DATA, SCALING
from amp_launcher.torch.observe.operators import is_light_in_graph

DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "c64": "complex64",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "f4e2m1fnx2": "float4_e2m1fn_x2",
}
TANGENT = "tangents_"
"""How the inputs of a backward begin that are gradients."""
RANDOM_STATES = ("rng_state_output_", "fwd_rng_state_", "bwd_rng_state_")
"""How the names begin of states from which a backward computes attention again; the last two are a GPU's, after all
other inputs."""
_ANNOTATION = re.compile(r"(?P<dtype>[a-z]+\d+\w*)\[(?P<shape>[^\]]*)\]")
_SAME_DATA = SAME_DATA | {"convert_element_type"}
"""Operations whose output is their first operand in another dtype, range or arrangement."""
_RANDOM_STATE = {
    "higher_order.run_and_save_rng_state": 0,
    "higher_order.run_with_rng_state": 1,
    "higher_order.graphsafe_run_with_rng_state": 0,
}
"""Operators around an operation -> its position in their arguments; its own arguments follow."""
_TRITON = ("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional")
"""How a graph calls a kernel that is written in Triton, by its number in a table of torch's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One value of a graph: sizes are numbers, or text over the graph's size symbols."""

    dtype: str
    sizes: tuple[str, ...]
    root: str = ""
    """The value that it is a cast, a view or a multiple of, or its own name."""
    narrowed: str = ""
    """The dtype of eight bits or fewer that it was rounded to, or is in."""
    gradient: bool = False
    """Computed from what backward was given."""
    widened: bool = False
    """In float32, of numbers that were in half precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """One matrix operation of a graph."""

    name: str
    operation: str
    operands: tuple[Value, ...]
    arguments: tuple[Any, ...]
    out: tuple[str, ...]
    formula: flops.Formula | None
    attention: bool = False
    """Whether torch computes attention to half tensors so, in float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    inputs: tuple[tuple[str, str], ...]
    """Name and annotation, in the order in which the code is given them."""
    products: tuple[Product, ...]
    unaccounted: tuple[str, ...]
    roots: Mapping[str, str]
    """Each value's root."""
    narrowed: Mapping[str, str]
    """Values that were rounded to a dtype of eight bits or fewer, or are in it -> that dtype."""
    returned: tuple[tuple[str, ...], ...]
    """The roots of what the graph returns, in order; of a sum, those that were added."""

    @property
    def backward(self) -> bool:
        """Whether it is the graph of a backward: its inputs have gradients."""
        return any(name.startswith(TANGENT) for name, _ in self.inputs)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> Graph:
    """The inputs and matrix operations of a graph's text. Raises `SyntaxError` where it isn't Python."""
    # The graph of a forward without gradients is a class by a name that isn't one: <lambda>.
    module = ast.parse(text.replace("class <lambda>(", "class graph(", 1)).body[0]
    assert isinstance(module, ast.ClassDef)
    forward = next(
        statement for statement in module.body if isinstance(statement, ast.FunctionDef) and statement.name == "forward"
    )
    inputs = tuple((argument.arg, _text(argument.annotation)) for argument in forward.args.args[1:])
    values = {name: value_of(annotation, name, gradient=name.startswith(TANGENT)) for name, annotation in inputs}
    products, unaccounted = [], []
    returned: tuple[tuple[str, ...], ...] = ()
    target: ast.expr
    sums: dict[str, tuple[str, ...]] = {}
    attention = AttentionProducts()
    for statement in forward.body:
        if isinstance(statement, ast.Return):
            elements = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            returned = tuple(_added(element, values, sums) for element in elements)
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
            if isinstance(target, ast.Name):
                attention.see(target.id, "", statement.value, product=False)
            continue
        namespace, _, operation = name.rpartition(".")
        values[target.id] = made = _computed(target.id, operation, call, annotation, values)
        if operation == "add":
            sums[target.id] = tuple(root for argument in call.args for root in _added(argument, values, sums))
        formula = _formula(namespace, operation)
        attention.see(target.id, operation, call, product=formula is not None)
        if formula is not None:
            products.append(_product(target.id, operation, formula, call, values, made))
        elif not is_light_in_graph(namespace, operation):
            unaccounted.append(f"{_of_triton(call) if operation in _TRITON else name} in compiled code")
    return Graph(
        inputs=inputs,
        products=tuple(replace(product, attention=_is_attention(product, attention)) for product in products),
        unaccounted=tuple(unaccounted),
        roots={name: value.root for name, value in values.items()},
        narrowed={name: value.narrowed for name, value in values.items() if value.narrowed},
        returned=returned,
    )


def _formula(namespace: str, operation: str) -> tuple[tuple[int, ...], flops.Formula | None] | None:
    """Positions of the matrices and the formula of an operation that is known to multiply them."""
    if namespace == "aten":
        return flops.FORMULAS.get(operation)
    return flops.higher_order(operation) if namespace == "higher_order" else None


def _product(
    name: str,
    operation: str,
    known: tuple[tuple[int, ...], flops.Formula | None],
    call: ast.Call,
    values: Mapping[str, Value],
    out: Value,
) -> Product:
    arguments = tuple(_argument(argument, values) for argument in call.args)
    positions, formula = known
    operands = tuple(arguments[position] for position in positions if isinstance(arguments[position], Value))
    return Product(
        name=name, operation=operation, operands=operands, arguments=arguments, out=out.sizes, formula=formula
    )


def _is_attention(product: Product, found: AttentionProducts) -> bool:
    if product.name in found.weighted:
        return product.operands[-1].widened
    return product.name in found.scores and all(operand.widened for operand in product.operands)


def _argument(node: ast.expr, values: Mapping[str, Value]) -> Any:
    if isinstance(node, ast.Name):
        return values.get(node.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_argument(element, values) for element in node.elts]
    return node.value if isinstance(node, ast.Constant) else None


def _alias(target: ast.expr, value: ast.expr | None, annotation: str, values: dict[str, Value]) -> None:
    """`x = y`, `x = y[0]`, `x = None` and arithmetic on sizes."""
    if isinstance(target, ast.Name) and not (isinstance(value, ast.Constant) and value.value is None):
        values[target.id] = made = value_of(annotation, target.id, gradient=_has_gradient(value, values))
        whole = value.value if isinstance(value, ast.Subscript) else None
        if isinstance(whole, ast.Name) and whole.id in values and values[whole.id].root != whole.id:
            values[target.id] = replace(made, root=values[whole.id].root)  # one of what an operation rounded


def _computed(name: str, operation: str, call: ast.Call, annotation: str, values: Mapping[str, Value]) -> Value:
    """The value that an operation returns."""
    value = value_of(annotation, name, gradient=_has_gradient(call, values))
    if operation not in _SAME_DATA:
        return value
    given = [values[argument.id] for argument in call.args if isinstance(argument, ast.Name) and argument.id in values]
    if operation in SCALING:
        same_size = [operand for operand in given if operand.sizes == value.sizes]
        if len(same_size) > 1:  # on a CPU the scales of rows and columns are multiplied first
            same_size = [operand for operand in same_size if operand.root.startswith("_scaled_mm")]
        given = same_size if len(same_size) == 1 else []
    if not given:
        return value
    widened = value.dtype == "float32" and (given[0].widened or given[0].dtype in ("float16", "bfloat16"))
    return replace(value, root=given[0].root, narrowed=value.narrowed or given[0].narrowed, widened=widened)


def _has_gradient(node: ast.expr | None, values: Mapping[str, Value]) -> bool:
    names = (child.id for child in ast.walk(node) if isinstance(child, ast.Name)) if node is not None else ()
    return any(name in values and values[name].gradient for name in names)


def _added(node: ast.expr | None, values: Mapping[str, Value], sums: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The root of a value, or those of the parts of a sum."""
    if not isinstance(node, ast.Name) or node.id not in values:
        return ()
    root = values[node.id].root
    return sums.get(root, (root,))


def _called(node: ast.expr | None) -> str:
    """`aten.mm` for a call of `torch.ops.aten.mm.default`, empty for what is no operation."""
    if not isinstance(node, ast.Call):
        return ""
    parts = ast.unparse(node.func).split(".")
    if parts[:2] != ["torch", "ops"] or len(parts) < 4:
        return ""
    return f"{parts[2]}.{parts[3]}"


def _of_triton(call: ast.Call) -> str:
    """`triton.NAME` for a call of a kernel that is written in Triton: one may hold a product, and nothing shows it."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table  # 0.4 s, but where torch compiles

    number = next((word.value for word in call.keywords if word.arg == "kernel_idx"), None)
    try:
        kernel: Any = kernel_side_table.get_kernel(number.value if isinstance(number, ast.Constant) else -1)
    except AssertionError:
        return "triton.kernel"
    while not hasattr(kernel, "__name__"):
        kernel = kernel.fn  # what tunes it
    return f"triton.{kernel.__name__}"


def _without_random_state(node: ast.expr | None) -> ast.expr | None:
    """The operation that the compiler has computed again from the same random state, as attention is."""
    position = _RANDOM_STATE.get(_called(node))
    if position is None or not isinstance(node, ast.Call):
        return node
    return ast.Call(func=node.args[position], args=node.args[position + 1 :], keywords=node.keywords)


def _text(annotation: ast.expr | None) -> str:
    return annotation.value if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str) else ""


def value_of(annotation: str, root: str, gradient: bool = False) -> Value:
    match = _ANNOTATION.match(annotation)
    if match is None:
        return Value(dtype="", sizes=(), root=root, gradient=gradient)
    shape = ast.parse(f"[{match['shape']}]", mode="eval").body
    assert isinstance(shape, ast.List)
    dtype = DTYPES.get(match["dtype"], match["dtype"])
    narrowed = dtype if is_narrow(dtype) else ""
    return Value(
        dtype=dtype, sizes=tuple(map(ast.unparse, shape.elts)), root=root, narrowed=narrowed, gradient=gradient
    )
