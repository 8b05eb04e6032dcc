"""The matrix products and convolutions of a graph that ran, with dtypes and FLOPs.

How often a loop of the model multiplies is unknown, and so is what Python computes inside of a graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from amp_launcher.precision.observation import call
from amp_launcher.tensorflow.observe import shapes
from amp_launcher.tensorflow.observe.products import PRODUCTS, base, flops, may_multiply

BACKWARD = re.compile(r"(^|/)(gradient_tape|gradients)/")
STEPS = "steps"
"""Name of the loop over the steps of one execution, which is not one of the model."""
LOOP = re.compile(rf"(^|/)(?!{STEPS}(_\d+)?/)[^/]+/body/_\d+/")
"""Of a loop in the model, or of its gradient's."""

INTEGERS = {"int32", "int64", "uint8"}
"""Dtypes that precision levels don't change."""

CLUSTER = re.compile(r"_?Xla(Compile|Run|Merge|Launch)")
"""Operations that run a program compiled by XLA."""


@dataclass(kw_only=True, slots=True)
class Reading:
    """The contents of graphs or of compiled programs: parts of a report as `precision.observation` has it."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    listed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of operations of the lists, by name and dtype."""
    kept: set[str] = field(default_factory=set)
    """Names of the layers kept in float32 that have an operation in them."""
    unaccounted: Counter[str] = field(default_factory=Counter)
    uncounted: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """Calls whose work is unknown, counted as little as it can be; and why it is."""
    per_sample: set[bool] = field(default_factory=set)
    """Whether the FLOPs of calls are those for one sample, because a graph doesn't say how many there are. With both,
    the calls' shares of the work are unknown."""

    def every_call(self) -> list[dict[str, Any]]:
        """Those of unknown work too."""
        return [*self.calls, *(call for call, _ in self.uncounted)]

    def add(self, other: Reading) -> None:
        self.calls += other.calls
        self.listed.update(other.listed)
        self.kept |= other.kept
        self.unaccounted.update(other.unaccounted)
        self.uncounted += other.uncounted
        self.per_sample |= other.per_sample


def read(optimized: Iterable[Any], named: Sequence[str], kept: str | None, compiled: bool = False) -> Reading:
    """The contents of graphs as Grappler leaves them, which TensorFlow keeps while graphs are collected.

    `named` are the operations of amp's lists; `kept` is part of the name of each operation of a layer kept in float32,
    None if no layer is. With `compiled`, what XLA's clusters run is read from its programs.
    """
    reading = Reading()
    for graph in optimized:
        _read_graph(graph, named, kept, compiled, reading)
    return reading


def _read_graph(graph: Any, named: Sequence[str], kept: str | None, compiled: bool, reading: Reading) -> None:
    """Add the contents of a graph."""
    products = [node for node in graph.node if base(node.op) in PRODUCTS]
    for node in graph.node:
        fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()  # a look-up would add the attribute
        names = {base(node.op), *(name.decode() for name in fused)}
        for name in names & set(named):
            if dtype_of(node) not in INTEGERS:  # for example a gather of labels
                reading.listed[name, dtype_of(node)] += 1
        if kept is not None:
            reading.kept.update(layer_of(node.name, kept))
        if base(node.op) not in PRODUCTS and may_multiply(node.op) and not (compiled and CLUSTER.match(node.op)):
            reading.unaccounted[node.op] += 1
    for function in graph.library.function:
        if not (is_compiled(function) and compiled):
            _read_function(function, is_compiled(function), kept, reading)
    if not products:
        return
    looped = [node for node in products if LOOP.search(node.name)]
    single = [node for node in products if not LOOP.search(node.name)]
    try:
        per_sample, works = _works(graph, single)
        known = shapes.infer(graph, [node.name for node in looped])
    except ValueError as error:
        reading.unaccounted[f"products of unknown shapes ({str(error).splitlines()[0][:200]})"] += len(products)
        return
    if single:
        reading.per_sample.add(per_sample)
    for node in single:
        work = works[node.name]
        if work is None:
            reading.uncounted.append((_call(node, 1, kept), f"{base(node.op)} of unknown shape"))
        else:
            reading.calls.append(_call(node, work, kept))
    for node in looped:
        once = _call(node, _work(node, known) or 1, kept)
        reading.uncounted.append((once, f"{base(node.op)} in a loop of the model"))


def is_eager(graph: Any) -> bool:
    """Whether the graph is that of an operation that ran outside of any graph. TensorFlow exports it too, with the
    names of the operation's own results, and twice in one where oneDNN has a kernel for it."""
    edges = ("_Arg", "_DeviceArg", "_Retval", "_DeviceRetval")
    operations = {node.op for node in graph.node if node.op not in edges}
    if len({base(operation) for operation in operations}) != 1:
        return False
    definitions = filter(None, map(op_def_registry.get, operations))
    results = {f"{result.name}_RetVal" for definition in definitions for result in definition.output_arg}
    returned = {node.name for node in graph.node if node.op in edges[2:]}
    return bool(returned) and returned <= results


def is_compiled(function: Any) -> bool:
    """Whether XLA compiles the whole function."""
    return "_XlaMustCompile" in function.attr and bool(function.attr["_XlaMustCompile"].b)


def read_compiled(function: Any, find: Callable[[str], Any], kept: str | None) -> Reading:
    """The contents of a function that XLA compiles and whose graph TensorFlow doesn't export, and of those that it
    calls, which `find` gives by their names."""
    reading, seen, waiting = Reading(), {function.signature.name}, [function]
    while waiting:
        function = waiting.pop()
        _read_function(function, True, kept, reading)
        for node in function.node_def:
            called = [attr.func.name for attr in node.attr.values() if attr.func.name]
            waiting += [find(name) for name in dict.fromkeys(called) if name not in seen]
            seen.update(called)
    return reading


def _read_function(function: Any, by_xla: bool, kept: str | None, reading: Reading) -> None:
    """Add the products of a function, which runs an unknown number of times."""
    where = "a function that jit_compile=True compiles" if by_xla else "a branch or function of its own"
    for node in function.node_def:
        if base(node.op) in PRODUCTS and not (by_xla and dtype_of(node) != "float32"):  # which XLA may widen
            reading.uncounted.append((_call(node, 1, kept), f"{node.op} in {where}"))
        elif base(node.op) in PRODUCTS or may_multiply(node.op):
            reading.unaccounted[f"{node.op} in {where}"] += 1


def _call(node: Any, work: int, kept: str | None) -> dict[str, Any]:
    operation = base(node.op)
    return call(
        operation,
        dtype_of(node),
        work,
        functions=[operation],
        backward=bool(BACKWARD.search(node.name)),
        kept=kept is not None and kept in node.name,
        device="cuda" if "GPU" in node.device else "cpu",
    )


def layer_of(operation: str, kept: str) -> list[str]:
    """The name of the kept layer of an operation, from `.../kept.NAME./...`; empty for other operations."""
    return re.findall(rf"/{kept}\.([^/]+)\.(?:_\d+)?/", operation)


def _works(graph: Any, products: Sequence[Any]) -> tuple[bool, dict[str, int | None]]:
    """Whether the FLOPs are those for one sample; and the FLOPs of each product, None where its shape is unknown.

    Where the number of samples is unknown, as with a smaller last batch, one and two samples are compared. Only work
    that doubles is counted: what grows otherwise has another share of a larger batch.
    """
    names = [node.name for node in products]
    known = shapes.infer(graph, names)
    exact = {node.name: _work(node, known) for node in products}
    if None not in exact.values():
        return False, exact
    one, two = (shapes.infer(graph, names, batch) for batch in (1, 2))
    works: dict[str, int | None] = {}
    for node in products:
        single, double = _work(node, one), _work(node, two)
        works[node.name] = single if single is not None and double == 2 * single else None
    return (True, works) if None not in works.values() else (False, exact)


def _work(node: Any, known: shapes.Shapes) -> int | None:
    operation, output = base(node.op), known.outputs[node.name]
    needed = 1 if operation in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3") else None
    shapes_of_inputs = known.inputs[node.name][:needed]
    inputs = [shape for shape in shapes_of_inputs if shape is not None]
    if output is None or len(inputs) < len(shapes_of_inputs):
        return None
    transposed = any(key in node.attr and node.attr[key].b for key in ("transpose_a", "adj_x"))
    equation = node.attr["equation"].s.decode() if "equation" in node.attr else ""
    return flops(operation, inputs, output, transposed, equation)


def dtype_of(node: Any) -> str:
    """The dtype of a node's operands; for a gather, of the operand that it gathers from."""
    attribute = next((key for key in ("T", "Tparams", "dtype") if key in node.attr), None)
    return tf.as_dtype(node.attr[attribute].type).name if attribute else "unknown"
