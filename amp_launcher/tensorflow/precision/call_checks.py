"""Refuses misuses of a precision's calls, each in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf


def refuse_loss(loss: Any) -> None:
    """Raise for what is no float32 scalar."""
    if not isinstance(loss, tf.Tensor):
        raise TypeError(f"precision.backward takes the loss as a tensor, and was given {type(loss).__name__}")
    if loss.dtype != tf.float32:
        raise RuntimeError(
            f"the loss is {loss.dtype.name} and must be float32: compute it from what the model gives, which is float32"
        )
    if loss.shape.rank not in (0, None):
        raise ValueError(
            f"precision.backward takes a loss of one number, and was given one of shape {loss.shape.as_list()}: take "
            "its tf.reduce_mean"
        )


def refuse_other_models(optimizer: keras.Optimizer, models: Iterable[keras.Model]) -> None:
    """Raise `RuntimeError` for an optimizer that was built for a variable of no prepared model."""
    known = {id(variable) for model in models for variable in model.variables}
    for variable in optimizer._trainable_variables:
        if id(variable) not in known:
            raise RuntimeError(
                f"this optimizer is built for {variable.path}, a variable of no prepared model: prepare the model "
                "first, and build the optimizer for that, or leave optimizer.build out"
            )
