"""Precision levels in torch: what applies them, loss scales, float32 masters, reduction over ranks."""

from recipes.torch_.precision.base import Precision, StepOutcome

__all__ = ["Precision", "StepOutcome"]
