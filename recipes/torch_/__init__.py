"""Trainers and precision for torch. The trailing underscore keeps this package from shadowing the framework."""

from __future__ import annotations

from recipes.trainer import installed

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise installed.missing("torch") from None
