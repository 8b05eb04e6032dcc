"""Torch's attention by matrix products, found in a compiled graph.

Where no fused kernel fits, as with dropout on a CPU, torch computes attention as two products in float32, whatever
autocast says. A compiled graph has their parts alone. What tells them apart is the softmax between them: it gives zeros
for a row that is masked as a whole, by comparing with minus infinity, and torch computes that nowhere else
(`aten::_safe_softmax`, torch 2.5 and newer). In older torch they are products like others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable


class AttentionProducts:
    """Told of each call of a graph, in order."""

    def __init__(self) -> None:
        self.scores: set[str] = set()
        self.weighted: set[str] = set()
        """The products with a softmax's result."""
        self._products: dict[str, frozenset[str]] = {}
        """A value -> the products that it was computed from, with no other product between."""
        self._weights: dict[str, frozenset[str]] = {}
        """What was computed from such a softmax -> the products that gave its scores."""
        self._masked: set[str] = set()
        """What says which scores are minus infinity."""

    def see(self, name: str, operation: str, call: ast.expr | None, product: bool) -> None:
        """The value `name` was computed so."""
        given = _names(call)
        weights = _union(self._weights, given)
        if product:
            if weights:
                self.weighted.add(name)
                self.scores |= weights
            self._products[name] = frozenset({name})
            return
        if operation == "where" and self._masked.intersection(given[:1]):
            weights = _union(self._products, given)
        elif _is_minus_infinity(operation, call) or (
            operation in ("logical_not", "any") and self._masked.intersection(given)
        ):
            self._masked.add(name)
        self._products[name] = _union(self._products, given)
        self._weights[name] = weights


def _is_minus_infinity(operation: str, call: ast.expr | None) -> bool:
    return operation == "eq" and isinstance(call, ast.Call) and "-inf" in map(ast.unparse, call.args)


def _names(node: ast.expr | None) -> list[str]:
    """In the order in which they stand there."""
    arguments = node.args if isinstance(node, ast.Call) else [] if node is None else [node]
    return [child.id for argument in arguments for child in ast.walk(argument) if isinstance(child, ast.Name)]


def _union(of: dict[str, frozenset[str]], names: Iterable[str]) -> frozenset[str]:
    return frozenset().union(*(of.get(name, frozenset()) for name in names))
