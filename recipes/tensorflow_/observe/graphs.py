"""What a graph that ran computes: its matrix products and convolutions, with dtype and work.

TensorFlow keeps, of each function that it instantiates while graphs are collected, the graph as optimized and the
partitions of it that its executors run. The first is read, and held against the second. What a loop of the model
repeats can't be counted, nor what Python computes inside of a graph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from recipes.tensorflow_.observe import shapes
from recipes.tensorflow_.observe.products import PRODUCTS, base, flops, may_multiply

BACKWARD = re.compile(r"(^|/)(gradient_tape|gradients)/")
LOOP = re.compile(r"(^|/)while(_\d+)?/body")
"""Of a loop in the model."""
STEPS = "steps"
"""Name of the loop over the steps of one execution, which is not one of the model."""

MIXED = "products for an unknown number of samples beside others"
"""Their shares of the work can't be told."""

INTEGERS = {"int32", "int64", "uint8"}
"""Dtypes of operands that no precision level is about."""

CLUSTER = re.compile(r"_?Xla(Compile|Run|Merge|Launch)")
"""Operations in whose place a program of XLA's runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What is known of the graphs that a function ran: parts of `recipes.precision.observation`'s report."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    listed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often an operation of the lists stands in them, by its name and dtype."""
    kept: set[str] = field(default_factory=set)
    """Names of the layers kept in float32 of which an operation stands in them."""
    unaccounted: Counter[str] = field(default_factory=Counter)
    audit: str = ""
    per_sample: bool = False
    """The work of calls is that for one sample: of how many, the graphs don't tell."""


def read(collected: Iterable[Any], named: Sequence[str], kept: str | None, compiled: bool = False) -> Reading:
    """What is in the graphs of RunMetadata's `function_graphs`; `compiled`: what XLA's clusters run is known otherwise.

    `named` are the operations of amp.allow and amp.deny; `kept` is what stands in the name of each operation of a layer
    kept in float32, None where none is.
    """
    found = Reading()
    disagreements = []
    units = set()
    for each in collected:
        graph = each.post_optimization_graph
        disagreements += _disagreement(graph, each.partition_graphs)
        one = Reading()
        units.add(_read_one(graph, named, kept, compiled, one))
        found.listed.update(one.listed)
        found.kept.update(one.kept)
        found.unaccounted.update(one.unaccounted)
        found.calls.extend(one.calls)
    units.discard(None)
    if len(units) > 1:
        found.unaccounted[MIXED] += len(found.calls)
        found.calls.clear()
    return Reading(
        calls=found.calls,
        listed=found.listed,
        kept=found.kept,
        unaccounted=found.unaccounted,
        audit="; ".join(disagreements),
        per_sample=units == {True},
    )


def _read_one(graph: Any, named: Sequence[str], kept: str | None, compiled: bool, found: Reading) -> bool | None:
    """Whether the work of its calls is that for one sample; None where it has none."""
    products = [node for node in graph.node if base(node.op) in PRODUCTS]
    for node in graph.node:
        fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()  # looking up what isn't there adds it
        names = {base(node.op), *(each.decode() for each in fused)}
        for name in names & set(named):
            if dtype_of(node) not in INTEGERS:  # as a gather of labels has
                found.listed[name, dtype_of(node)] += 1
        if kept is not None:
            found.kept.update(layer_of(node.name, kept))
        if base(node.op) not in PRODUCTS and may_multiply(node.op) and not (compiled and CLUSTER.match(node.op)):
            found.unaccounted[node.op] += 1
    for function in graph.library.function:
        inside = Counter(node.op for node in function.node_def if base(node.op) in PRODUCTS or may_multiply(node.op))
        for operation, times in inside.items():
            found.unaccounted[f"{operation} in a branch or function of its own"] += times
    if not products:
        return None
    try:
        per_sample, works = _works(graph, products)
    except ValueError as error:
        found.unaccounted[f"products of unknown shapes ({str(error).splitlines()[0][:200]})"] += len(products)
        return None
    for node in products:
        operation, work = base(node.op), works[node.name]
        if LOOP.search(node.name):
            found.unaccounted[f"{operation} in a loop of the model"] += 1
        elif work is None:
            found.unaccounted[f"{operation} of unknown shape"] += 1
        else:
            found.calls.append(
                call(
                    operation,
                    dtype_of(node),
                    work,
                    backward=bool(BACKWARD.search(node.name)),
                    kept=kept is not None and kept in node.name,
                    device="cuda" if "GPU" in node.device else "cpu",
                )
            )
    return per_sample


def layer_of(operation: str, kept: str) -> list[str]:
    """The name of the kept layer that an operation is of, from `.../kept.NAME./...`; none of any other operation."""
    return re.findall(rf"/{kept}\.([^/]+)\.(?:_\d+)?/", operation)


def _works(graph: Any, products: Sequence[Any]) -> tuple[bool, dict[str, int | None]]:
    """FLOPs of each product, None where its shape is unknown; and whether they are those for one sample.

    Where the number of samples is unknown, as with a last batch that is smaller, that of two tells: only work that
    doubles is counted, since what grows otherwise has another share of a larger batch.
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
    inputs = known.inputs[node.name][:needed]
    if output is None or not shapes.all_known(inputs):
        return None
    transposed = any(key in node.attr and node.attr[key].b for key in ("transpose_a", "adj_x"))
    equation = node.attr["equation"].s.decode() if "equation" in node.attr else ""
    return flops(operation, inputs, output, transposed, equation)


def call(
    operation: str, dtype: str, work: int, *, backward: bool, kept: bool, device: str, compiled: bool = False
) -> dict[str, Any]:
    """One call as `recipes.precision.observation` has it."""
    return {
        "operation": operation,
        "functions": [operation],
        "backward": backward,
        "dtype": dtype,
        "kept": kept,
        "compiled": compiled,
        "device": device,
        "calls": 1,
        "flops": work,
    }


def dtype_of(node: Any) -> str:
    """Of its operands; of what it takes rows of, where it gathers."""
    named = next((key for key in ("T", "Tparams", "dtype") if key in node.attr), None)
    return tf.as_dtype(node.attr[named].type).name if named else "unknown"


def _disagreement(graph: Any, partitions: Sequence[Any]) -> list[str]:
    """Where what the executors run is something else than the optimized graph."""
    one = Counter((base(node.op), dtype_of(node)) for node in graph.node if base(node.op) in PRODUCTS)
    other = Counter(
        (base(node.op), dtype_of(node)) for part in partitions for node in part.node if base(node.op) in PRODUCTS
    )
    if one == other:
        return []
    return [
        f"{one[each]} {each[0]} in {each[1]} in the optimized graph and {other[each]} in what was run"
        for each in sorted({*one, *other})
        if one[each] != other[each]
    ]
