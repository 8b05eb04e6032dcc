"""A model's dtypes: which modules stay and compute in float32 (`amp.keep_fp32`), and casting the others."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from amp_launcher.shown import some
from amp_launcher.torch.precision.structures import CAST, floats_to
from amp_launcher.typed import SettingsError, nearest

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


def matching(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """Names of the modules that the patterns name (shell wildcards over `named_modules`), in the model's order."""
    names = [name for name, _ in model.named_modules() if name]
    return tuple(name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def refuse_unknown(models: Sequence[nn.Module], patterns: Sequence[str]) -> None:
    """Raise `SettingsError` for a pattern that names no module of these models."""
    names = [name for model in models for name, _ in model.named_modules() if name]
    for pattern in patterns if models else ():
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise SettingsError(
                f"amp.keep_fp32: {pattern} names no module of {', '.join(type(model).__name__ for model in models)}"
                f"{nearest(pattern, names)} (modules: {some(names, 12)})"
            )


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
                if "." in name:  # of a container that keeps them itself, as tensordict's
                    buffer.data = buffer.data.to(dtype)
                else:
                    setattr(module, name, buffer.to(dtype))
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN wants an RNN's weights in one piece of memory


class Float32Forward(nn.Module):
    """Mixed into a module's class: inputs cast to float32, autocast off, so that everything inside is float32.

    `outputs_to` casts what comes out, for models whose next layers have half-precision weights and no autocast.
    """

    float32_device_type: str
    float32_outputs_to: torch.dtype | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.float32_device_type, enabled=False):
            result = super().forward(*floats_to(args, torch.float32), **floats_to(kwargs, torch.float32))
        return result if self.float32_outputs_to is None else floats_to(result, self.float32_outputs_to)


def compute_in_float32(module: nn.Module, device_type: str, outputs_to: torch.dtype | None = None) -> None:
    """Make `module` run in float32, in place. Containers without a forward hand this on to what they hold.

    The class is swapped for a subclass, as torch's own `fully_shard` does: parameter names stay, and unlike a patched
    `forward` or a wrapper it survives `copy.deepcopy`.
    """
    if isinstance(module, Float32Forward):
        return
    cls = type(module)
    if cls.forward is nn.Module.forward:
        for child in module.children():
            compute_in_float32(child, device_type, outputs_to)
        return
    module.__class__ = type(f"Float32{cls.__name__}", (Float32Forward, cls), {"__module__": cls.__module__})
    module.float32_device_type = device_type
    module.float32_outputs_to = outputs_to
