"""A model's dtypes: which modules stay in float32, and casting the others."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from recipes.typed import SettingsError, nearest

NORMS: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
"""Kept in float32 at o2. A norm of one's own is named in `amp.keep_fp32`."""

CAST = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes that mixed precision moves between; float64 and complex tensors are left alone."""


def floats_to(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its half-precision and float32 tensors in `dtype`, inside lists, tuples and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in CAST else value
    if isinstance(value, dict):
        return {name: floats_to(item, dtype) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(floats_to(item, dtype) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(floats_to(item, dtype) for item in value)
    return value


def matching(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules that the patterns name (shell wildcards over `named_modules`), in the model's order.

    Raises `SettingsError` for a pattern that names no module.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise SettingsError(
                f"amp.keep_fp32: {pattern} names no module of {type(model).__name__}{nearest(pattern, names)} "
                f"(modules: {_some(names)})",
                "amp.keep_fp32",
            )
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def _some(names: Sequence[str], limit: int = 12) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


@torch.no_grad()
def to_dtype(model: nn.Module, dtype: torch.dtype, keep: Iterable[nn.Module], *, buffers: bool) -> None:
    """Cast floating parameters, and with `buffers` these too, to `dtype` in place, but for those anywhere inside the
    modules of `keep`.

    Parameters stay the same objects. One that is shared with a kept module is kept.
    """
    kept = {id(tensor) for module in keep for tensor in (*module.parameters(), *module.buffers())}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in CAST and id(parameter) not in kept:
                parameter.data = parameter.data.to(dtype)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffers and buffer.dtype in CAST and id(buffer) not in kept:
                setattr(module, name, buffer.to(dtype))
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants an RNN's weights in one piece of memory
