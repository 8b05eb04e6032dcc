"""Precision levels in Paddle: the calls of a training loop, what carries each level out, and `paddle.Model`."""

from amp_launcher.paddle.precision.calls import Precision, precision_of
from amp_launcher.precision.step_outcome import StepOutcome

__all__ = ["Precision", "StepOutcome", "precision_of"]
