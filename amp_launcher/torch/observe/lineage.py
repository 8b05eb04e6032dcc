"""Which values of a step are the same data: a weight and its casts, an activation and what backward makes of it.

An operation that casts, scales, clips or rearranges one tensor passes its origin on to what it returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from amp_launcher.precision.call_summary import is_narrow
from amp_launcher.precision.gemm import QUANTIZERS
from amp_launcher.torch.observe.calls import dtype_name, tensors
from amp_launcher.torch.observe.memory import Memory, Origin, Record, memory_of

_FIRST = frozenset(
    (
        "_to_copy clone contiguous t transpose permute view _unsafe_view reshape _reshape_copy alias detach expand "
        "slice select squeeze unsqueeze flatten unflatten split clamp clamp_min clamp_max constant_pad_nd as_strided"
    ).split()
)
"""Operations that return the data of their first argument, in another dtype, arrangement or range."""
_COPIES = frozenset(("ToCopyBackward0", "CloneBackward0", "TBackward0", "TransposeBackward0", "ViewBackward0"))
"""Autograd's names of some."""
SCALING = frozenset(("mul", "div"))
"""The same where the other factor has fewer elements, as scales have."""
SAME_DATA = frozenset((*_FIRST, *SCALING, *QUANTIZERS, "copy_"))


class Lineage:
    """The origins of the tensors of one step."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def origin(self, tensor: torch.Tensor) -> Origin:
        record = self._memory.record(tensor)
        if record.origin is None:
            dtype = dtype_name(tensor.dtype)
            record.origin = Origin(
                memory=memory_of(tensor),
                parameter=tensor if isinstance(tensor, nn.Parameter) else None,
                narrowed=dtype if is_narrow(dtype) else "",
            )
        elif isinstance(tensor, nn.Parameter) and record.origin.parameter is not tensor:  # given the data of another
            record.origin = replace(record.origin, memory=memory_of(tensor), parameter=tensor)
        return record.origin

    def add_older(self, tensor: torch.Tensor) -> None:
        """Training uses a tensor that it computed before the step, perhaps a copy of a weight."""
        weight = _copied(tensor)
        if weight is not None:
            writes = self._memory.record(weight).writes
            origin = Origin(memory=memory_of(weight), parameter=weight, writes=writes)
            self._memory.record(tensor).origin = origin

    def is_old(self, matrix: torch.Tensor) -> bool:
        """Whether this is a copy of a weight that has been written since."""
        record = self._memory.record(matrix)
        origin = record.origin
        if origin is None or origin.parameter is None or origin.memory == memory_of(matrix):
            return False
        weight = self._memory.records.get(origin.memory)
        return weight is not None and weight.writes != origin.writes

    def record(self, tensor: torch.Tensor) -> Record:
        return self._memory.record(tensor)

    def follow(self, operation: str, args: Any, out: Any) -> None:
        """Record what an operation of `SAME_DATA` returned."""
        if operation == "copy_":
            target, source = args[:2]
        else:
            target, source = out, _source(operation, args, out)
        if not isinstance(source, torch.Tensor) or source.layout != torch.strided:
            return
        origin = self.origin(source)  # which a view of a weight shows for the first time
        if origin.memory == memory_of(source):
            origin = replace(origin, writes=self._memory.record(source).writes)
        for each in tensors([target]):
            record = self._memory.record(each)
            if isinstance(each, nn.Parameter) or record is self._memory.record(source):
                continue
            dtype = dtype_name(each.dtype)
            record.origin = replace(origin, narrowed=dtype) if is_narrow(dtype) else origin


def _copied(tensor: torch.Tensor) -> nn.Parameter | None:
    """The weight that autograd knows this to be a copy of."""
    node = tensor.grad_fn
    while node is not None and node.name() in _COPIES:
        node = node.next_functions[0][0]
    weight = getattr(node, "variable", None)
    return weight if isinstance(weight, nn.Parameter) else None


def _source(operation: str, args: Any, out: Any) -> Any:
    if operation in _FIRST or operation in QUANTIZERS:
        return args[0]
    same_size = [
        operand for operand in args[:2] if isinstance(operand, torch.Tensor) and operand.numel() == out.numel()
    ]
    return same_size[0] if len(same_size) == 1 else None
