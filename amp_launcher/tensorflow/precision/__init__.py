"""Precision modes in TensorFlow: the calls of a training loop, and what carries each mode out."""

from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.tensorflow.precision.base import Mechanism
from amp_launcher.tensorflow.precision.calls import Precision, precision_of
from amp_launcher.tensorflow.precision.mechanisms import GraphRewrite, HalfPolicy, MixedPolicy

__all__ = ["GraphRewrite", "HalfPolicy", "Mechanism", "MixedPolicy", "Precision", "StepOutcome", "precision_of"]

Mechanism.by_level = {"o0": Mechanism, "o1": GraphRewrite, "o2": MixedPolicy, "o3": HalfPolicy}
