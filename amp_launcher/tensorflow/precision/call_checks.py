"""Refuses misuses of a precision's calls, each in one sentence."""

from __future__ import annotations

import numbers
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


def refuse_clip(clip: Any) -> None:
    """Raise for a norm that would stop training in silence."""
    if clip is None or isinstance(clip, tf.Tensor):
        return
    if isinstance(clip, bool) or not isinstance(clip, numbers.Real):
        raise TypeError(f"clip= is the largest norm of the gradients, a number, and was given {clip!r}")
    if not float(clip) > 0:
        raise ValueError(
            f"clip={clip} would leave nothing of the gradients: it is their largest norm, a number above 0; where 0 "
            "means no clipping, write clip=value or None"
        )


def refuse_anothers(optimizer: keras.Optimizer, models: Iterable[keras.Model]) -> None:
    """Raise `RuntimeError` for an optimizer that was built for a variable of no prepared model."""
    known = {id(variable) for model in models for variable in model.variables}
    for variable in optimizer._trainable_variables:
        if id(variable) not in known:
            raise RuntimeError(
                f"this optimizer is built for {variable.path}, a variable of no prepared model: prepare the model "
                "first, and build the optimizer for that, or leave optimizer.build out"
            )
