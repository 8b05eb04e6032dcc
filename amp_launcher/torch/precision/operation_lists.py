"""`amp.allow` and `amp.deny`: operations moved into half precision or kept in float32, on top of autocast's own lists.

Autocast's lists can't be changed publicly. A function mode gets each call before autocast does, casts the operands and
runs the operation with autocast off. It works eager and compiled, and the casts are in the compiled graph itself, so
that a compile cache can't return a program made for other lists.

A mode gets the calls that a model makes, not those inside torch's own Python functions. The one that matters is
multi-head attention, which `refuse_unreachable` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amp_launcher.torch.precision.structures import floats_to
from amp_launcher.typed import SettingsError

OTHER_SPELLINGS = {
    "div": ("divide", "true_divide", "__rdiv__"),
    "logsigmoid": ("log_sigmoid",),
    "mul": ("multiply",),
    "multi_dot": ("linalg_multi_dot",),
    "norm": ("linalg_norm", "linalg_vector_norm", "linalg_matrix_norm"),
    "pow": ("__rpow__",),
    "sub": ("subtract", "rsub", "__rsub__"),
}
"""Other names under which torch passes an operation to a mode. In-place forms keep their operand's dtype."""

INPUT_ONLY = frozenset({"batch_norm", "instance_norm"})
"""Their running statistics are written in place: a cast copy of them would lose what was written."""

INSIDE_ATTENTION = frozenset(
    {"add", "baddbmm", "bmm", "cat", "dropout", "linear", "matmul", "scaled_dot_product_attention", "softmax"}
)
"""Operations that `torch.nn.functional.multi_head_attention_forward` calls without passing them to a mode."""


class OperationLists(TorchFunctionMode):
    """Runs operations in `allow` in `dtype` and those in `deny` in float32, with autocast off for just that call.

    `allow` and `deny` are canonical names (`amp_launcher.precision.operations.lists`).
    """

    def __init__(self, allow: Sequence[str], deny: Sequence[str], dtype: torch.dtype, device_type: str) -> None:
        super().__init__()
        self.device_type = device_type
        self.dtypes = {
            spelling: target
            for names, target in ((allow, dtype), (deny, torch.float32))
            for name in names
            for spelling in (name, *OTHER_SPELLINGS.get(name, ()))
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        target = self.dtypes.get(name)
        if target is None or kwargs.get("out") is not None:
            return func(*args, **kwargs)
        with torch.autocast(self.device_type, enabled=False):
            if name in INPUT_ONLY:
                return func(floats_to(args[0], target), *args[1:], **kwargs)
            return func(*floats_to(args, target), **floats_to(kwargs, target))


def refuse_unreachable(model: nn.Module, kept: Sequence[nn.Module], allow: Sequence[str], deny: Sequence[str]) -> None:
    """Raise `SettingsError` where a list names an operation inside `nn.MultiheadAttention`, which it can't reach.

    Attention inside the modules of `kept` is float32 anyway.
    """
    hidden = [operation for operation in (*allow, *deny) if operation in INSIDE_ATTENTION]
    if not hidden:
        return
    inside_kept = {id(inner) for module in kept for inner in module.modules()}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and id(module) not in inside_kept:
            key = "amp.deny" if hidden[0] in deny else "amp.allow"
            raise SettingsError(
                f"{key}: {hidden[0]} can't be had inside {name or 'the model'}, which is torch's MultiheadAttention; "
                f"say amp.keep_fp32=[{name or '*'}] to keep all of it in float32",
                key,
            )
