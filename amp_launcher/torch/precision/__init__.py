"""Precision levels in torch: what applies them, loss scales, float32 masters, reduction over ranks."""

from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision import mechanisms, stochastic_rounding  # their classes register themselves
from amp_launcher.torch.precision.base import Precision

__all__ = ["Precision", "StepOutcome", "mechanisms", "stochastic_rounding"]
