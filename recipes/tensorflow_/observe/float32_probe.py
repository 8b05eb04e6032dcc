"""How the matrix units compute float32, measured: switches say what is allowed, not what happens.

A product with the identity matrix returns its input exactly, unless the input is rounded. 1 + 2**-12
needs more bits than TF32 (10) or bfloat16 (7) have; 1 + 2**-9 tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
import tensorflow as tf
from tensorflow.python.eager import context

SIZE = 128


def arithmetic() -> dict[str, str]:
    """`float32`, `tf32` or `bfloat16` for each of `matmul`, `bmm` and `convolution` on the device in use.

    Eager, also where the script builds graphs, to which nothing is added.
    """
    with context.eager_mode():
        return {name: rounding(multiply) for name, multiply in _PRODUCTS.items()}


def rounding(multiply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> str:
    """How `multiply`, a product of two (SIZE, SIZE) float32 matrices, rounds its operands."""
    if _survives(1 + 2.0**-12, multiply):
        return "float32"
    return "tf32" if _survives(1 + 2.0**-9, multiply) else "bfloat16"


def switches(device: str) -> dict[str, str]:
    """The settings that let float32 products on `device` (cpu or cuda) round their operands."""
    if device == "cpu":
        return {}
    return {"tensor_float_32_execution": str(tf.config.experimental.tensor_float_32_execution_enabled())}


def _survives(number: float, multiply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> bool:
    matrix = tf.fill((SIZE, SIZE), tf.constant(number, tf.float32))
    return bool(numpy.array_equal(multiply(matrix, tf.eye(SIZE)).numpy(), matrix.numpy()))


def _convolve(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """A matrix product as a convolution with 1x1 kernels over an image of one row."""
    return tf.nn.conv2d(left[None, None], right[None, None], 1, "VALID")[0, 0]


_PRODUCTS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "matmul": tf.matmul,
    "bmm": lambda left, right: tf.matmul(left[None], right[None])[0],
    "convolution": _convolve,
}
