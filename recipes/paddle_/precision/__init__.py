"""Precision levels in Paddle: what applies them, loss scales, and `paddle.Model` at a level."""

from recipes.paddle_.precision.base import Precision
from recipes.paddle_.precision.mechanisms import AutoCast, Decorated
from recipes.precision.step_outcome import StepOutcome

__all__ = ["AutoCast", "Decorated", "Precision", "StepOutcome"]
