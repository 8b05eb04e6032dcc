"""Precision levels in TensorFlow: what applies them, loss scales, gradients, Grappler's graph rewrite."""

from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.tensorflow.precision.base import Precision
from amp_launcher.tensorflow.precision.mechanisms import GraphRewrite, HalfPolicy, MixedPolicy

__all__ = ["GraphRewrite", "HalfPolicy", "MixedPolicy", "Precision", "StepOutcome"]

Precision.by_level = {"o0": Precision, "o1": GraphRewrite, "o2": MixedPolicy, "o3": HalfPolicy}
