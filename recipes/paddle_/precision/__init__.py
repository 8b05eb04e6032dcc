"""Precision levels in Paddle: what applies them, and loss scales."""

from recipes.paddle_.precision.base import Precision, StepOutcome

__all__ = ["Precision", "StepOutcome"]
