"""The functions of Paddle that multiply matrices, and their work in FLOPs: two for each multiplication with its
addition."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import paddle
from paddle import _C_ops

from amp_launcher.around.replaced import observed
from amp_launcher.precision.observation import Guard


def _matmul(given: Sequence[Any], named: Mapping[str, Any], output: paddle.Tensor) -> int:
    left = _first(given, named)
    transposed = named.get("transpose_x", given[2] if len(given) > 2 and isinstance(given[2], bool) else False)
    return 2 * int(output.size) * int(left.shape[-2 if transposed and left.ndim > 1 else -1])


def _conv(given: Sequence[Any], named: Mapping[str, Any], output: paddle.Tensor) -> int:
    return 2 * int(output.size) * math.prod(_second(given, named).shape[1:])  # [outputs, inputs of a group, ...kernel]


def _conv_transpose(given: Sequence[Any], named: Mapping[str, Any], output: paddle.Tensor) -> int:
    return 2 * int(_first(given, named).size) * math.prod(_second(given, named).shape[1:])


def _rnn(given: Sequence[Any], named: Mapping[str, Any], output: paddle.Tensor) -> int:
    steps, samples, *_ = given[0].shape
    return 2 * steps * samples * sum(int(weight.size) for weight in given[2] if weight.ndim == 2)


Work = Callable[[Sequence[Any], Mapping[str, Any], paddle.Tensor], int]
WORK: dict[str, Work] = {
    "matmul": _matmul,
    "linear": _matmul,
    "linear_v2": _matmul,
    "bmm": _matmul,
    "conv2d": _conv,
    "depthwise_conv2d": _conv,
    "conv3d": _conv,
    "conv2d_transpose": _conv_transpose,
    "depthwise_conv2d_transpose": _conv_transpose,
    "conv3d_transpose": _conv_transpose,
    "rnn": _rnn,
}
"""Functions of `paddle._C_ops`, through which layers, `paddle.nn.functional` and methods of tensors call them."""
OPERATIONS = {
    "linear": "matmul",
    "linear_v2": "matmul",
    "depthwise_conv2d": "conv2d",
    "depthwise_conv2d_transpose": "conv2d_transpose",
}
"""What these functions compute, in the name of another one."""
KERNELS = (*WORK, "matmul_v2", "fused_gemm_epilogue")
"""Paddle's names for what they run."""
OPERATORS = {"__matmul__": False, "__rmatmul__": True}
"""Of tensors, which pass `paddle._C_ops` by; whether the operands are given in reverse."""


@contextlib.contextmanager
def observing(guard: Guard, record: Callable[[str, Sequence[Any], paddle.Tensor, int], None]) -> Iterator[None]:
    """`record` is called with each eager product's operation, arguments, output and work."""

    def before(*given: Any, **named: Any) -> bool | None:
        return paddle.in_dynamic_mode() or None

    def after(name: str, reverse: bool, returned: tuple[Any, ...], given: Sequence[Any], named: Any) -> None:
        for output in returned:
            output = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(output, paddle.Tensor) and output.is_floating_point():
                given = given[::-1] if reverse else given
                record(OPERATIONS.get(name, name), (*given, *named.values()), output, WORK[name](given, named, output))

    def watched(owner: Any, attribute: str, name: str, reverse: bool = False) -> Any:
        def ended(began: bool, returned: tuple[Any, ...], *given: Any, **named: Any) -> None:
            after(name, reverse, returned, given, named)

        return observed(owner, attribute, guard, before, ended)

    with contextlib.ExitStack() as patches:
        for name in WORK:
            for module in _holders(name):
                patches.enter_context(watched(module, name, name))
        for operator, reverse in OPERATORS.items():
            patches.enter_context(watched(paddle.Tensor, operator, "matmul", reverse))
        yield


@functools.cache
def _holders(name: str) -> list[Any]:
    """`paddle._C_ops` and the modules of Paddle that imported its function; none in a release without it."""
    function = getattr(_C_ops, name, None)
    modules = [module for path, module in sys.modules.items() if path.partition(".")[0] == "paddle"]
    return [module for module in modules if function is not None and vars(module).get(name) is function]


def _first(given: Sequence[Any], named: Mapping[str, Any]) -> paddle.Tensor:
    return given[0] if given else named[next(name for name in ("x", "input") if name in named)]


def _second(given: Sequence[Any], named: Mapping[str, Any]) -> paddle.Tensor:
    return given[1] if len(given) > 1 else named[next(name for name in ("y", "filter") if name in named)]
