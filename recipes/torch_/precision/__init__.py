"""Precision levels in torch: what applies them, loss scales, float32 masters, reduction over ranks."""

from recipes.precision.step_outcome import StepOutcome
from recipes.torch_.precision.base import Precision
from recipes.torch_.precision.half_model import HalfModel
from recipes.torch_.precision.mechanisms import Autocast, HalfModelFloat32Masters, HalfModelNoMasters

__all__ = ["Autocast", "HalfModel", "HalfModelFloat32Masters", "HalfModelNoMasters", "Precision", "StepOutcome"]
