"""Floating-point operations of torch's matrix products and convolutions, and which tensors are multiplied.

Counted is one multiplication and one addition for each product, bias and padding ignored, as
`torch.utils.flop_counter` does. The formulas for convolution gradients and for attention on a CPU are our own: torch's
count the weight gradient of a grouped convolution `groups` times, and leave attention on a CPU out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

Formula = Callable[[Sequence[Any], Sequence[int]], int]
"""From the call's positional arguments and the shape of its first output to floating-point operations."""


class Unaccounted(Exception):
    """A matrix operation that can't be counted; the message says why."""


def _matrix_product(first: int) -> Formula:
    """(..., m, k) @ (..., k, n), the left operand at position `first`: 2 m k n for each matrix."""
    return lambda arguments, out: 2 * prod(arguments[first].shape) * arguments[first + 1].shape[-1]


def _matrix_vector_product(first: int) -> Formula:
    """(m, k) @ (k,), and the dot product of two vectors: 2 m k."""
    return lambda arguments, out: 2 * prod(arguments[first].shape)


def _scaled_product(arguments: Sequence[Any], out: Sequence[int]) -> int:
    """(m, k) @ (k, n) in eight bits or fewer; of four bits two numbers are one element."""
    left, right = arguments[:2]
    packed = 2 if "x2" in str(getattr(left, "dtype", "")) else 1
    return 2 * packed * prod(left.shape) * right.shape[-1]


def _grouped_product(arguments: Sequence[Any], out: Sequence[int]) -> int:
    """One product for each group, of matrices stacked or end to end: (rows, k) @ (groups, k, n), both stacked, or split
    along k or along n. Rows beyond the last group count too."""
    left, right = arguments[:2]
    rows = left.shape[1:] if len(left.shape) > len(right.shape) else left.shape
    return 2 * prod(rows) * right.shape[-1]


def _distances(arguments: Sequence[Any], out: Sequence[int]) -> int:
    """(..., m, k) and (..., n, k): 2 m k n for each matrix, without the squares of the lengths."""
    return 2 * prod(arguments[0].shape) * arguments[1].shape[-2]


def _outer_product(arguments: Sequence[Any], out: Sequence[int]) -> int:
    return 2 * prod(arguments[1].shape) * prod(arguments[2].shape)


def _one_convolution(images: Sequence[int], weight: Sequence[int]) -> int:
    """2 x batch x positions x weights. Weight (c_out, c_in / groups, *kernel): the groups are in its shape."""
    return 2 * images[0] * prod(images[2:]) * prod(weight)


def _convolution(arguments: Sequence[Any], out: Sequence[int]) -> int:
    transposed = arguments[6]
    return _one_convolution(arguments[0].shape if transposed else out, arguments[1].shape)


def _convolution_backward(arguments: Sequence[Any], out: Sequence[int]) -> int:
    """The gradients of input and weight are each as much work as the convolution itself."""
    gradient, images, weight, transposed, wanted = (arguments[position] for position in (0, 1, 2, 7, 10))
    product = _one_convolution((images if transposed else gradient).shape, weight.shape)
    return product * (bool(wanted[0]) + bool(wanted[1]))


def _attention(first: int, of_query: int, of_value: int) -> Formula:
    """Products with the query's and with the value's width; query, key and value begin at position `first`."""

    def formula(arguments: Sequence[Any], out: Sequence[int]) -> int:
        query, key, value = (arguments[first + index].shape for index in range(3))
        scores = prod(query[:-1]) * key[-2]
        return 2 * scores * (of_query * query[-1] + of_value * value[-1])

    return formula


_ATTENTION_KERNELS = [
    f"_scaled_dot_product_{kernel}"
    for kernel in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
]


def _recurrent(weights: Callable[[Sequence[Any]], Sequence[Any]], passes: int) -> Formula:
    """Every weight matrix meets every step of every sequence. Input (time, batch, features) or packed (rows, ...)."""

    def formula(arguments: Sequence[Any], out: Sequence[int]) -> int:
        matrices = [weight.shape for weight in weights(arguments) if len(weight.shape) > 1]
        return passes * 2 * prod(arguments[0].shape[:-1]) * sum(prod(shape) for shape in matrices)

    return formula


FORMULAS: dict[str, tuple[tuple[int, ...], Formula | None]] = {
    operation: (positions, formula)
    for positions, formula, operations in (
        ((0, 1), _matrix_product(0), "mm bmm _int_mm"),
        ((1, 2), _matrix_product(1), "addmm addbmm baddbmm addmm_ addbmm_ baddbmm_ _addmm_activation"),
        ((0, 1), _scaled_product, "_scaled_mm _scaled_mm_v2"),
        ((0, 1), _grouped_product, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
        ((0, 1), _matrix_vector_product(0), "mv dot vdot"),
        ((1, 2), _matrix_vector_product(1), "addmv addmv_"),
        ((1, 2), _outer_product, "addr addr_"),
        ((0, 1), _distances, "_euclidean_dist"),
        ((0, 1), _convolution, "convolution"),
        ((0, 1, 2), _convolution_backward, "convolution_backward"),
        ((0, 1, 2), _attention(0, 1, 1), " ".join(_ATTENTION_KERNELS)),
        # The scores are computed again.
        ((0, 1, 2, 3), _attention(1, 3, 2), " ".join(f"{kernel}_backward" for kernel in _ATTENTION_KERNELS)),
        ((0, 1, 2), None, "_flash_attention_forward _efficient_attention_forward"),
        ((0, 1, 2, 3), None, "_flash_attention_backward _efficient_attention_backward"),
        ((0, 1, 2), _recurrent(lambda arguments: arguments[1:3], 1), "mkldnn_rnn_layer"),
        ((0, 1, 2), _recurrent(lambda arguments: arguments[1:3], 2), "mkldnn_rnn_layer_backward"),
        ((0, 1), _recurrent(lambda arguments: arguments[1], 1), "_cudnn_rnn"),
        ((0, 1), _recurrent(lambda arguments: arguments[1], 2), "_cudnn_rnn_backward"),
    )
    for operation in operations.split()
}
"""aten operation -> positions of the matrices (not of bias, statistics or log-sum-exp), and its formula.

None is for those that take sequences packed end to end, whose lengths only torch's own formulas can read.
"""


_SCALES = {"_scaled_mm": (2, 3), "_scaled_mm_v2": (2, 5)}
"""Positions of the scales of both operands; in a list the first are those of blocks."""


def scales(operation: str, arguments: Sequence[Any]) -> tuple[str, ...]:
    """The dtypes of the numbers by which a product in eight bits or fewer scales its operands."""
    given = [arguments[position] for position in _SCALES.get(operation, ()) if position < len(arguments)]
    first = [scale[0] if isinstance(scale, (list, tuple)) else scale for scale in given]
    return tuple(dict.fromkeys(str(scale.dtype).removeprefix("torch.") for scale in first if scale is not None))


def higher_order(name: str) -> tuple[tuple[int, ...], Formula] | None:
    """The same of an operator that takes functions, where torch has a formula for it, as for flex attention."""
    formula = flop_registry.get(getattr(torch.ops.higher_order, name, None))
    if formula is None:
        return None
    return (0, 1, 2), lambda arguments, out: int(formula(*arguments))


def functions(
    operation: str, operands: Sequence[tuple[str, tuple[int, ...]]], transposed: bool | None = None
) -> tuple[str, ...]:
    """The torch functions that can end in this aten operation, one where it is certain.

    `operands` are dtype and shape of its matrices; `transposed` is of convolutions, None where it isn't known.
    """
    if operation.startswith("convolution"):
        dimensions = len(operands[-1][1]) - 2
        names = (f"conv{dimensions}d", f"conv_transpose{dimensions}d")
        return names if transposed is None else (names[transposed],)
    if "grouped" in operation or "scaled_mm" in operation or "flex" in operation:
        return (operation,)
    if "dot_product" in operation:
        return ("scaled_dot_product_attention",)
    if "rnn" in operation:
        return ("lstm", "gru", "rnn_tanh", "rnn_relu")
    if operation in ("mm", "addmm", "_addmm_activation"):
        return ("linear", "matmul", "mm", "addmm", "einsum", "chain_matmul", "multi_dot", *_RECURRENT, *_ATTENTION)
    if operation in ("bmm", "baddbmm", "addbmm"):
        return ("matmul", "bmm", "baddbmm", "addbmm", "einsum", *_ATTENTION)
    if operation == "_euclidean_dist":
        return ("cdist",)
    return (operation, "matmul", "einsum")


_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
_ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
