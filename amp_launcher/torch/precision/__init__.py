"""Precision modes in torch: the calls of a training loop, and what carries each mode out."""

from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision.calls import Precision, precision_of

__all__ = ["Precision", "StepOutcome", "precision_of"]
