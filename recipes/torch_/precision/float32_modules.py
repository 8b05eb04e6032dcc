"""Modules that compute in float32 inside a model that otherwise doesn't (`amp.keep_fp32`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from recipes.torch_.precision.cast import floats_to


class Float32Forward:
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
