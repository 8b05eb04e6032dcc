"""Precision levels in TensorFlow: what applies them, loss scales, gradients, Grappler's graph rewrite."""

from recipes.tensorflow_.precision.base import Precision, StepOutcome

__all__ = ["Precision", "StepOutcome"]
