"""How the matrix units round float32, found by arithmetic: switches show what may happen, not what does.

A product with the identity matrix returns its input exactly, unless the input is rounded on its way in. 1 + 2**-12
needs more bits than TF32 (10) or bfloat16 (7) have; 1 + 2**-9 tells the two apart.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator

import torch

from amp_launcher.precision.value_rules import PROBE_SIZES
from amp_launcher.torch.observe.profiler_audit import PROBE
from amp_launcher.torch.precision.tf32 import has_new_switches


def arithmetic(device: torch.device) -> dict[str, str]:
    """`float32`, `tf32` or `bfloat16` for each of `matmul`, `bmm` and `convolution` on `device`."""
    return {name: rounding(multiply, device) for name, multiply in _PRODUCTS.items()}


def rounding(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: torch.device) -> str:
    """How `multiply`, a product of two square float32 matrices, rounds its operands."""
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),
        torch.profiler.record_function(PROBE),
        _without_search(device),
    ):
        identity = torch.eye(PROBE_SIZES[device.type], device=device)
        if _survives(1 + 2.0**-12, identity, multiply):
            return "float32"
        return "tf32" if _survives(1 + 2.0**-9, identity, multiply) else "bfloat16"


@contextlib.contextmanager
def _without_search(device: torch.device) -> Iterator[None]:
    """cuDNN's heuristic chooses the kernel: its search for the fastest ran 33,000 kernels for this on an H200."""
    if device.type != "cuda" or not torch.backends.cudnn.benchmark:
        yield
        return
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = True


def _survives(
    number: float, identity: torch.Tensor, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> bool:
    given = torch.full_like(identity, number)
    return torch.equal(multiply(given, identity), given)


def _convolve(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A matrix product as a convolution with 1x1 kernels over a square image."""
    size = len(left)
    images = left.t().reshape(1, size, 8, -1)
    return torch.conv2d(images, right.t().reshape(size, size, 1, 1)).reshape(size, -1).t()


_PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": torch.mm,
    "bmm": lambda left, right: torch.bmm(left[None], right[None])[0],
    "convolution": _convolve,
}


def switches(device: torch.device) -> dict[str, str]:
    """The settings that let float32 products on `device` round their operands: name -> what it is set to."""
    settings = {}
    for name in (_SWITCHES if has_new_switches() else _OLD_SWITCHES)[device.type]:
        try:
            value = operator.attrgetter(name.removesuffix("()"))(torch)
            settings[f"torch.{name}"] = str(value() if callable(value) else value)
        except RuntimeError:
            settings[f"torch.{name}"] = "unreadable"  # old and new switches were mixed; the arithmetic tells
    return settings


_SWITCHES = {
    "cpu": [f"backends.mkldnn.{product}.fp32_precision" for product in ("matmul", "conv", "rnn")],
    "cuda": [f"backends.{product}.fp32_precision" for product in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")],
}
_OLD_SWITCHES = {
    "cpu": ["get_float32_matmul_precision()"],
    "cuda": ["backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32"],
}
"""By device, those of torch before 2.9."""
