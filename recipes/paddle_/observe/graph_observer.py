"""Reports of a static graph's steps: the dtypes of the program that ran. There is no second evidence for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from paddle import nn

from recipes.paddle_.observe.observer import PrecisionObserver
from recipes.paddle_.static_graph import StaticGraph
from recipes.precision.observation import Guard, call
from recipes.precision.resolved import ResolvedPrecision


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
            report = self._graph_report()
        self._add_report(number, evaluation, report, guard)

    def _graph_report(self) -> dict[str, Any]:
        graph, resolved = self._graph, self._resolved
        products = list(graph.products())
        exact = all(dtype != "float32" for _, _, dtype, _ in products)
        return {
            "calls": [
                call("matmul", dtype, flops, functions=["matmul"], backward=backward, kept=kept, device=resolved.device)
                for backward, kept, dtype, flops in products
            ],
            "listed": graph.listed((*resolved.allow, *resolved.deny)),
            "unaccounted": dict(graph.unaccounted()),
            "optimizer": dict(graph.stepped()),
            "parameters": [
                {"group": group, "dtype": dtype, "elements": count}
                for (group, dtype), count in graph.parameters().items()
            ],
            "float32": {"switches": {}, "arithmetic": {}} if exact else self._float32(),
        }
