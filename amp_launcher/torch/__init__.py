"""Trainers and precision for torch. The trailing underscore keeps this package from shadowing the framework."""

from __future__ import annotations

from amp_launcher.loop import require_framework

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise require_framework.missing("torch") from None

from amp_launcher.torch.precision import Precision

__all__ = ["Precision"]
