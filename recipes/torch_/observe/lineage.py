"""Which values of a step are the same data: a weight and its casts, an activation and what backward makes of it.

Values are followed by their memory, which views share. An operation that casts, scales, clips or rearranges one tensor
passes its origin on to what it returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from recipes.precision.call_summary import is_narrow
from recipes.torch_.observe.calls import dtype_name

_FIRST = frozenset(
    (
        "_to_copy clone contiguous t transpose permute view _unsafe_view reshape _reshape_copy alias detach expand "
        "slice select squeeze unsqueeze flatten unflatten split clamp clamp_min clamp_max constant_pad_nd as_strided"
    ).split()
)
"""Operations that return the data of their first argument, in another dtype, arrangement or range."""
SCALING = frozenset(("mul", "div"))
"""The same where the other factor has fewer elements, as scales have."""
SAME_DATA = frozenset((*_FIRST, *SCALING, "copy_"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the data of a tensor came from."""

    memory: int
    """Identifies the memory that had it first."""
    parameter: nn.Parameter | None = None
    """The weight that it is."""
    narrowed: str = ""
    """The dtype of eight bits or fewer that it was rounded to, or is in."""


class Lineage:
    """The origins of the tensors of one step."""

    def __init__(self) -> None:
        # The weak reference keeps an address from being given to other memory.
        self._known: dict[int, tuple[StorageWeakRef, Origin]] = {}

    def origin(self, tensor: torch.Tensor) -> Origin:
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None:
            return known[1]
        dtype = dtype_name(tensor.dtype)
        origin = Origin(
            memory=storage._cdata,
            parameter=tensor if isinstance(tensor, nn.Parameter) else None,
            narrowed=dtype if is_narrow(dtype) else "",
        )
        self._known[storage._cdata] = StorageWeakRef(storage), origin
        return origin

    def follow(self, operation: str, args: Any, out: Any) -> None:
        """Record what an operation of `SAME_DATA` returned."""
        if operation == "copy_":
            target, source = args[:2]
        else:
            target, source = out, _source(operation, args, out)
        if not isinstance(source, torch.Tensor) or source.layout != torch.strided:
            return
        origin = self.origin(source)  # which a view of a weight shows for the first time
        if not isinstance(target, torch.Tensor) or isinstance(target, nn.Parameter):
            return
        storage = target.untyped_storage()
        if storage._cdata == source.untyped_storage()._cdata:
            return
        dtype = dtype_name(target.dtype)
        if is_narrow(dtype):
            origin = replace(origin, narrowed=dtype)
        self._known[storage._cdata] = StorageWeakRef(storage), origin


def _source(operation: str, args: Any, out: Any) -> Any:
    if operation in _FIRST:
        return args[0]
    same_size = [
        operand for operand in args[:2] if isinstance(operand, torch.Tensor) and operand.numel() == out.numel()
    ]
    return same_size[0] if len(same_size) == 1 else None
