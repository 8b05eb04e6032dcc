"""The floating-point tensors in whatever a model takes and gives, in another dtype."""

from __future__ import annotations

from typing import Any

import torch

from amp_launcher.precision.structures import changed

CAST = (torch.float16, torch.bfloat16, torch.float32)
"""The dtypes that mixed precision moves between; float64 and complex tensors are left alone."""


def floats_to(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its half-precision and float32 tensors in `dtype`, as `changed` has it."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.dtype in CAST else tensor

    return changed(value, torch.Tensor, cast)
