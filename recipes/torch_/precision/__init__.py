"""Precision levels in torch: what applies them, loss scales, float32 masters, reduction over ranks."""

from recipes.precision.step_outcome import StepOutcome
from recipes.torch_.precision import mechanisms, stochastic_rounding  # their classes register themselves
from recipes.torch_.precision.base import Precision

__all__ = ["Precision", "StepOutcome", "mechanisms", "stochastic_rounding"]
