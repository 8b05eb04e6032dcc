"""The shapes of a graph's tensors, by TensorFlow's own shape inference.

An optimized graph can't be imported: fused operations refuse dtypes that their kernels take, and loops have no shapes
before they are closed. So the nodes before the wanted ones are imported with plain operations in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from amp_launcher.tensorflow.observe.products import base

Shape = tuple[int, ...]

LEADING = {"Enter", "Exit", "NextIteration", "Merge", "Identity", "RefEnter"}
"""Operations whose output is their first input."""
KEPT_ATTRIBUTES = {
    "Conv2D": ("T", "strides", "padding", "data_format", "dilations", "explicit_paddings"),
    "DepthwiseConv2dNative": ("T", "strides", "padding", "data_format", "dilations", "explicit_paddings"),
    "MatMul": ("T", "transpose_a", "transpose_b"),
    "BatchMatMulV2": ("T", "adj_x", "adj_y"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shapes:
    """Shapes of nodes' inputs and first outputs, by the node's name; None where unknown."""

    inputs: dict[str, list[Shape | None]] = field(default_factory=dict)
    outputs: dict[str, Shape | None] = field(default_factory=dict)


def infer(graph: Any, wanted: Iterable[str], batch: int | None = None) -> Shapes:
    """The shapes around the nodes of a GraphDef with the `wanted` names.

    `batch` is taken as the first dimension of the graph's inputs where that dimension, and no other, is unknown.
    """
    nodes = {node.name: node for node in graph.node}
    wanted = list(wanted)
    plain = tf.compat.v1.GraphDef(versions=graph.versions, library=graph.library)
    done: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        new = plain.node.add()
        new.CopyFrom(_plain(nodes[name], nodes))  # on no device
        if batch is not None:
            _fill(new, batch)
        todo += [_source(name) for name in new.input]
    imported = tf.Graph()
    with imported.as_default():
        tf.graph_util.import_graph_def(plain, name="")
    shapes = Shapes()
    for name in wanted:
        operation = imported.get_operation_by_name(name)
        shapes.inputs[name] = [_known(tensor.shape) for tensor in operation.inputs]
        shapes.outputs[name] = _known(operation.outputs[0].shape)
    return shapes


def _plain(node: Any, nodes: dict[str, Any]) -> Any:
    """The node as one that can be imported, without control inputs."""
    inputs = [name for name in node.input if not name.startswith("^")]
    if node.op == "_Arg" and _of_argument(node, "_handle_shapes"):
        return _variable(node)
    if node.op == "_Arg":
        return _placeholder(node.name, node.attr["T"], _of_argument(node, "_output_shapes"))
    if node.op == "ReadVariableOp":
        return _placeholder(node.name, node.attr["dtype"], _shape_of_resource(inputs[0], nodes))
    if node.op in LEADING and len(inputs) >= 1:
        return _identity(node.name, node.attr["T"], inputs[0])
    operation = base(node.op)
    new = tf.compat.v1.NodeDef(name=node.name, op=operation, input=inputs)
    if operation == node.op:
        for key, value in node.attr.items():
            if key != "_class":  # a device beside that of a node which is left out
                new.attr[key].CopyFrom(value)
        return new
    if operation in KEPT_ATTRIBUTES:
        del new.input[2:]
        for key in KEPT_ATTRIBUTES[operation]:
            if key in node.attr:
                new.attr[key].CopyFrom(node.attr[key])
        return new
    if operation == "BatchNormEx":  # _FusedBatchNormEx: its output has the shape of its first input
        return _identity(node.name, node.attr["T"], inputs[0])
    return _placeholder(node.name, node.attr["T"], None)


def _fill(node: Any, batch: int) -> None:
    """Set the unknown number of samples of the data that a node provides."""
    shapes = [node.attr["shape"].shape] if node.op == "Placeholder" else []
    if "output_shapes" in node.attr:
        shapes += node.attr["output_shapes"].list.shape
    for shape in shapes:
        first, *others = shape.dim or [None]
        if first is not None and first.size < 0 and all(other.size >= 0 for other in others):
            first.size = batch


def _placeholder(name: str, dtype: Any, shape: Any) -> Any:
    new = tf.compat.v1.NodeDef(name=name, op="Placeholder")
    new.attr["dtype"].CopyFrom(dtype)
    if shape is None:
        new.attr["shape"].shape.unknown_rank = True
    else:
        new.attr["shape"].shape.CopyFrom(shape)
    return new


def _variable(argument: Any) -> Any:
    """A variable's handle with its shape, by which rows are gathered, as those of an embedding."""
    new = tf.compat.v1.NodeDef(name=argument.name, op="VarHandleOp")
    new.attr["dtype"].type = argument.attr["_handle_dtypes"].list.type[0]
    new.attr["shape"].shape.CopyFrom(_of_argument(argument, "_handle_shapes"))
    return new


def _identity(name: str, dtype: Any, source: str) -> Any:
    new = tf.compat.v1.NodeDef(name=name, op="Identity", input=[source])
    new.attr["T"].CopyFrom(dtype)
    return new


def _shape_of_resource(name: str, nodes: dict[str, Any]) -> Any:
    """The shape of a variable that is a function's argument or a session's own, None where it comes from elsewhere."""
    node = nodes[_source(name)]
    while node.op in (*LEADING, "Switch"):
        node = nodes[_source(node.input[0])]
    if node.op == "VarHandleOp":
        return node.attr["shape"].shape
    return _of_argument(node, "_handle_shapes") if node.op == "_Arg" else None


def _of_argument(node: Any, key: str) -> Any:
    shapes = node.attr[key].list.shape if key in node.attr else []
    return shapes[0] if shapes else None


def _source(name: str) -> str:
    return re.sub(r":\d+$", "", name)


def _known(shape: tf.TensorShape) -> Shape | None:
    return tuple(shape.as_list()) if shape.is_fully_defined() else None
