"""The operations of a TensorFlow graph that multiply matrices, and their FLOPs.

A graph has several names for one product: Grappler fuses it with the next operation (`_FusedMatMul`), oneDNN replaces
it (`_MklNativeFusedConv2D`). `base` gives the common name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

Shape = Sequence[int]

_DECORATION = re.compile(r"^_?(?:Mkl)?(?:Native)?(?:PadWith)?(?:Fused)?(?=[A-Z])|WithBias$")

MATMULS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
CONVOLUTIONS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")
OF_INPUT = (
    "Conv2DBackpropInput",
    "Conv3DBackpropInput",
    "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput",
)
OF_FILTER = tuple(name.replace("Input", "Filter") for name in OF_INPUT)
PRODUCTS = (*MATMULS, "Einsum", *CONVOLUTIONS, *OF_INPUT, *OF_FILTER)

_SUSPECT = re.compile(r"MatMul|Matmul|Conv[\dDV]|Convolution|RNN|LSTM|GRU|PyFunc|Mha|Attention|TPU|_Xla|XlaLaunch")


def base(operation: str) -> str:
    """The name of an operation before it was fused or replaced: `_MklNativeFusedConv2D` is `Conv2D`."""
    if not operation.startswith("_"):
        return operation
    return _DECORATION.sub("", operation)


def may_multiply(operation: str) -> bool:
    """Whether an operation that is not one of `PRODUCTS` may multiply matrices."""
    return bool(_SUSPECT.search(operation))


def flops(operation: str, inputs: Sequence[Shape], output: Shape, transposed: bool = False, equation: str = "") -> int:
    """Two for each multiplication with its addition.

    `operation` is one of `PRODUCTS`, with the shapes of its first inputs and of its first output. `transposed` says
    that a matrix product takes its first operand transposed; `equation` is an Einsum's. A convolution's filter has
    shape [height, width, channels in of a group, channels out], whatever the layout of its images.
    """
    if operation in MATMULS:
        rows, columns = inputs[0][-2:]
        return 2 * math.prod(output) * (rows if transposed else columns)
    if operation == "Einsum":
        return 2 * math.prod(_sizes(equation, inputs).values())
    if operation in CONVOLUTIONS:
        out, kernel = output, inputs[1]
    elif operation in OF_INPUT:
        out, kernel = inputs[2], inputs[1]
    else:
        out, kernel = inputs[2], output
    per_output = math.prod(kernel[:-2] if operation.startswith("Depthwise") else kernel[:-1])
    return 2 * math.prod(out) * per_output


def _sizes(equation: str, inputs: Sequence[Shape]) -> dict[str, int]:
    """The size of each label; the dimensions of `...` get labels too."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(equation.split("->")[0].split(","), inputs, strict=True):
        before, dots, after = labels.partition("...")
        unnamed = len(shape) - len(before) - len(after) if dots else 0
        for label, size in zip([*before, *(f".{index}" for index in range(unnamed)), *after], shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return sizes
