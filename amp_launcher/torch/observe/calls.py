"""The record of a matrix product or convolution in an observed step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amp_launcher.precision.call_summary import is_narrow
from amp_launcher.precision.gemm import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductUse:
    """The role of a product, and the layer that it belongs to."""

    role: Role | None = None
    """None where it isn't known."""
    layer: str | None = None
    """The module with the weight; empty for a product without weights, None where it isn't known."""
    formats: tuple[str, ...] = ()
    """The dtypes of its operands in the order of `amp_launcher.precision.gemm.GemmFormat`."""
    emulates: tuple[str, ...] = ()
    """The narrower dtypes that they were rounded to and widened from, in the same order; empty where none was."""

    @classmethod
    def of(cls, role: Role, layer: str | None, operands: Sequence[tuple[str, str]]) -> ProductUse:
        """`operands` are the dtypes, each with the one of eight bits or fewer that it was rounded to or is in."""
        emulated = all(narrowed and not is_narrow(dtype) for dtype, narrowed in operands)
        return cls(
            role=role,
            layer=layer,
            formats=tuple(dtype for dtype, _ in operands),
            emulates=tuple(narrowed for _, narrowed in operands) if emulated else (),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One matrix product or convolution."""

    operation: str
    """aten's name without the overload, such as `addmm`."""
    backward: bool
    operands: tuple[tuple[str, tuple[int, ...]], ...]
    """dtype and shape of each matrix."""
    flops: int = 0
    device: str = ""
    kept: bool | None = False
    """Inside a module of `amp.keep_fp32`; None where that isn't known."""
    origin: int = -1
    """For a gradient, the index of the forward call that it belongs to; -1 where none was found."""
    functions: tuple[str, ...] = ()
    """The torch function that it came from; several where it is one of these."""
    compiled: bool = False
    use: ProductUse = ProductUse()
    scales: tuple[str, ...] = ()
    """The dtypes of the numbers by which it scales its operands."""

    @property
    def dtype(self) -> str:
        """The widest of its matrices' dtypes: what the arithmetic has to be."""
        return widest(dtype for dtype, _ in self.operands)


_WIDTH = {"complex128": 16, "float64": 8, "complex64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def widest(dtypes: Iterable[str]) -> str:
    return max(dtypes, key=lambda dtype: _WIDTH.get(dtype, 0.5 if dtype.startswith("float4") else 1))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among `values`, those in lists of lists too."""
    flat: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            flat.append(value)
        elif isinstance(value, (list, tuple)):
            flat.extend(tensors(value))
    return flat
