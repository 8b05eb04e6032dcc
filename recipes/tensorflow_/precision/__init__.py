"""Precision levels in TensorFlow: what applies them, loss scales, gradients, Grappler's graph rewrite."""

from recipes.precision.step_outcome import StepOutcome
from recipes.tensorflow_.precision.base import Precision
from recipes.tensorflow_.precision.mechanisms import GraphRewrite, HalfPolicy, MixedPolicy

__all__ = ["GraphRewrite", "HalfPolicy", "MixedPolicy", "Precision", "StepOutcome"]
