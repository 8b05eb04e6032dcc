"""How the matrix units compute float32, measured: switches say what is allowed, not what happens.

A product with the identity matrix returns its input exactly, unless the input is rounded. 1 + 2**-12
needs more bits than TF32 (10) or bfloat16 (7) have; 1 + 2**-9 tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
import tensorflow as tf
from tensorflow.python.eager import context

from amp_launcher.precision.value_rules import PROBE_SIZES


def arithmetic(device: str) -> dict[str, str]:
    """`float32`, `tf32` or `bfloat16` for each of `matmul`, `bmm` and `convolution` on the device in use, cpu or cuda.

    Eager, also where the script builds graphs, to which nothing is added.
    """
    with context.eager_mode():
        return {name: rounding(multiply, PROBE_SIZES[device]) for name, multiply in _PRODUCTS.items()}


def rounding(multiply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], size: int) -> str:
    """How `multiply`, a product of two (size, size) float32 matrices, rounds its operands."""
    if _survives(1 + 2.0**-12, multiply, size):
        return "float32"
    return "tf32" if _survives(1 + 2.0**-9, multiply, size) else "bfloat16"


def switches(device: str) -> dict[str, str]:
    """The settings that let float32 products on `device` (cpu or cuda) round their operands."""
    if device == "cpu":
        return {}
    return {"tensor_float_32_execution": str(tf.config.experimental.tensor_float_32_execution_enabled())}


def _survives(number: float, multiply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], size: int) -> bool:
    matrix = tf.fill((size, size), tf.constant(number, tf.float32))
    return bool(numpy.array_equal(multiply(matrix, tf.eye(size)).numpy(), matrix.numpy()))


def _convolve(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """A matrix product as a convolution with 1x1 kernels over an image of one row."""
    return tf.nn.conv2d(left[None, None], right[None, None], 1, "VALID")[0, 0]


_PRODUCTS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "matmul": tf.matmul,
    "bmm": lambda left, right: tf.matmul(left[None], right[None])[0],
    "convolution": _convolve,
}
