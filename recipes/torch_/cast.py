"""Turning a model into its level's dtypes, and refusing models for which it is too late."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

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

HALF_OR_FLOAT32 = (torch.float16, torch.bfloat16, torch.float32)


def floats_to(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its float16, bfloat16 and float32 tensors in `dtype`, inside lists, tuples and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in HALF_OR_FLOAT32 and value.dtype != dtype else value
    if isinstance(value, dict):
        return {name: floats_to(each, dtype) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(floats_to(each, dtype) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(floats_to(each, dtype) for each in value)
    return value


def refuse_wrapped(model: nn.Module) -> None:
    """Raise `RuntimeError` where `model`, or a module in it, is already distributed or compiled.

    Those have made their plans (buckets, shards, graphs) for the dtypes that they saw: a cast afterwards raises
    nothing and, under DDP, lets the ranks drift apart.
    """
    for name, module in model.named_modules():
        wrapper = _wrapper(module)
        if wrapper:
            where = f"module {name}" if name else "the model"
            raise RuntimeError(
                f"{where} is already wrapped by {wrapper}; precision.cast(model) comes first, then DDP, FSDP or compile"
            )


def _wrapper(module: nn.Module) -> str:
    if isinstance(module, (DistributedDataParallel, nn.DataParallel)) or hasattr(module, "_orig_mod"):
        return type(module).__name__
    if any(each.__name__ in ("FullyShardedDataParallel", "FSDPModule") for each in type(module).__mro__):
        return "FSDP"
    return ""


def matching(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules that the patterns name (shell wildcards over `named_modules`), in the model's order.

    Raises `SettingsError` for a pattern that names no module.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SettingsError(
                f"amp.keep_fp32: {pattern} names no module of {type(model).__name__}{nearest(pattern, names)} "
                f"(modules: {_some(names)})",
                "amp.keep_fp32",
            )
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, each) for each in patterns))


def _some(names: Sequence[str], limit: int = 12) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def to_dtype(model: nn.Module, dtype: torch.dtype, keep: Iterable[nn.Module]) -> None:
    """Cast floating parameters and buffers to `dtype` in place, but for the modules of `keep` and all inside them."""
    kept = {id(inner) for module in keep for inner in module.modules()}
    kept_tensors = {
        id(tensor)
        for module in model.modules()
        if id(module) in kept
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }
    with torch.no_grad():
        for module in model.modules():
            if id(module) in kept:
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.is_floating_point() and id(parameter) not in kept_tensors:
                    parameter.data = parameter.data.to(dtype)
            for name, buffer in list(module.named_buffers(recurse=False)):
                if buffer.is_floating_point() and id(buffer) not in kept_tensors:
                    setattr(module, name, buffer.to(dtype))
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()
