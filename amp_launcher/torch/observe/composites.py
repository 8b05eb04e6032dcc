"""Runs an operation by its parts, so that each of them is dispatched."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._ops import HigherOrderOperator

from amp_launcher.torch.observe.calls import tensors
from amp_launcher.torch.observe.operators import HOLDING_PRODUCTS, has_kernel

_EXPLICIT = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
"""Keys of kernels for every device. By the key of a device such a kernel can't be called: torch crashes."""


def parts_of(func: Any) -> Any:
    """The function that runs an operation's decomposition."""
    if isinstance(
        func, HigherOrderOperator
    ):  # flex attention, for example, upcasts: torch's formula for the whole of it would miss that
        return func.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]
    return _in_parts(func)


def _in_parts(func: Any) -> Any:
    """The function that runs an operation by its parts as they run without a dispatch mode: below one autocast is left
    out, which a part of a recurrent cell needs, for example."""

    def run(*args: Any, **kwargs: Any) -> Any:
        device = next((tensor.device.type for tensor in tensors(args)), "cpu")
        with torch.overrides.enable_reentrant_dispatch():
            is_on = _has_autocast(device) and torch.is_autocast_enabled(device)
        with _autocast_seen(device) if is_on else contextlib.nullcontext():
            if func._schema.name not in HOLDING_PRODUCTS:
                return func.decompose(*args, **kwargs)
            key = next(filter(lambda key: has_kernel(func, key), _EXPLICIT), device.upper())
            return func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)

    return run


def _has_autocast(device: str) -> bool:
    return hasattr(torch._C.DispatchKey, f"Autocast{device.upper()}")


def _autocast_seen(device: str) -> Any:
    return torch._C._SetExcludeDispatchKeyGuard(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"), False)
