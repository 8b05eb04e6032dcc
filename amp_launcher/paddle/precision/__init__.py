"""Precision levels in Paddle: what applies them, loss scales, and `paddle.Model` at a level."""

from amp_launcher.paddle.precision.base import Precision
from amp_launcher.paddle.precision.mechanisms import AutoCast, Decorated
from amp_launcher.precision.step_outcome import StepOutcome

__all__ = ["AutoCast", "Decorated", "Precision", "StepOutcome"]

Precision.by_level = {"o0": Precision, "o1": AutoCast, "o2": Decorated, "o3": Decorated}
