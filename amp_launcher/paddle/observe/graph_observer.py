"""Reports of a static graph's steps: the dtypes of the program that ran. There is no second evidence for it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy
from paddle import nn

from amp_launcher.paddle.observe.observer import PrecisionObserver
from amp_launcher.paddle.precision.base import dtype_name
from amp_launcher.paddle.static_graph import StaticGraph
from amp_launcher.precision import observation
from amp_launcher.precision.observation import Guard
from amp_launcher.precision.operations import in_paddle
from amp_launcher.precision.resolved import ResolvedPrecision


class GraphObserver(PrecisionObserver):
    """Observes the steps of a static graph."""

    def __init__(self, graph: StaticGraph, resolved: ResolvedPrecision) -> None:
        super().__init__(nn.Layer(), resolved)
        self._graph = graph

    @contextlib.contextmanager
    def step(self, number: int, *, evaluation: bool = False) -> Iterator[None]:
        yield
        guard = Guard()
        report: dict[str, Any] = {}
        with guard():
            report = {**self._head(number, evaluation), **self._graph_report()}
        self._add_report(number, evaluation, report, guard)

    def _graph_report(self) -> dict[str, Any]:
        calls = [self._product(operation) for operation in self._graph.operations("matmul", "mul")]
        exact = all(call["dtype"] != "float32" for call in calls)
        types = Counter(operation.type for operation in self._graph.block.ops)
        return {
            "calls": calls,
            "listed": self._listed(),
            "unaccounted": {name: count for name, count in types.items() if "conv" in name or "attention" in name},
            "optimizer": self._stepped(),
            "parameters": self._graph_parameters(),
            "float32": {"switches": {}, "arithmetic": {}} if exact else self._float32(),
        }

    def _product(self, operation: Any) -> dict[str, Any]:
        """A matrix product, in the widest dtype of its matrices; `kept` is outside of the guard."""
        left, right = (self._graph.block.var(operation.input(name)[0]) for name in ("X", "Y"))
        dtypes = {dtype_name(left.dtype), dtype_name(right.dtype)}
        backward = operation.type.endswith("_grad")
        products = sum(bool(operation.output(name)) for name in ("X@GRAD", "Y@GRAD")) if backward else 1
        return observation.call(
            "matmul",
            "float32" if "float32" in dtypes else dtypes.pop(),
            products * 2 * left.shape[0] * left.shape[1] * right.shape[1],
            functions=["matmul"],
            backward=backward,
            kept=not self._graph.in_guard(operation),
            device=self._resolved.device,
        )

    def _listed(self) -> list[dict[str, Any]]:
        """How often the program has the operations of `amp.allow` and `amp.deny` in forward, and on which dtypes."""
        block = self._graph.block
        listed: Counter[tuple[str, str]] = Counter()
        for name in (*self._resolved.allow, *self._resolved.deny):
            for operation in (operation for operation in block.ops if operation.type in in_paddle((name,))):
                listed[name, dtype_name(block.var(operation.input_arg_names[0]).dtype)] += 1
        return [{"function": name, "dtypes": [dtype], "calls": times} for (name, dtype), times in listed.items()]

    def _stepped(self) -> dict[str, int]:
        """Elements that the optimizer steps, by dtype."""
        elements: Counter[str] = Counter()
        for operation in self._graph.operations("sgd"):
            masters = "MasterParam" in operation.input_names and operation.input("MasterParam")
            (name,) = operation.input("MasterParam" if masters else "Param")
            variable = self._graph.block.var(name)
            elements[dtype_name(variable.dtype)] += int(numpy.prod(variable.shape))
        return dict(elements)

    def _graph_parameters(self) -> list[dict[str, Any]]:
        """Parameters as they are in the graph's scope; the group `kept` is outside of the guard."""
        kept = {
            name
            for operation in self._graph.operations("matmul", "mul", "elementwise_add")
            if not self._graph.in_guard(operation)
            for name in operation.input_arg_names
        }
        elements: Counter[tuple[str, str]] = Counter()
        for parameter in self._graph.program.all_parameters():
            values = self._graph.value(parameter.name)
            dtype = "bfloat16" if values.dtype == numpy.uint16 else values.dtype.name  # NumPy has no bfloat16
            elements["kept" if parameter.name in kept else "other", dtype] += values.size
        return [{"group": group, "dtype": dtype, "elements": count} for (group, dtype), count in elements.items()]
