"""Gradients, dense or of rows: those of an embedding are `tf.IndexedSlices`, which hold the rows that were looked up.

They stay that, so that a step of a large embedding costs what its batch looks up, and not what it holds. A row that was
looked up twice is in them twice, and is added up before anything that is not linear: a norm, or an optimizer's squares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def values(gradient: Gradient) -> tf.Tensor:
    """The numbers in it."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def mapped(change: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """The same gradient with its numbers changed, zero staying zero."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
    return change(gradient)


def added(one: Gradient | None, other: Gradient | None) -> Gradient | None:
    """The sum of two gradients of one variable; None is that of a loss that doesn't depend on it."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        rows = tf.concat([one.values, other.values], 0)
        return tf.IndexedSlices(rows, tf.concat([one.indices, other.indices], 0), one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def merged(gradient: Gradient) -> Gradient:
    """The same gradient with each row once, added up in float32."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, places = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(tf.cast(gradient.values, tf.float32), places, tf.size(indices))
    return tf.IndexedSlices(tf.cast(rows, gradient.values.dtype), indices, gradient.dense_shape)
