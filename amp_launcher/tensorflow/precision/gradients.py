"""Gradients, dense or sparse. That of an embedding is `tf.IndexedSlices`: the rows that the batch looked up.

It stays sparse, so that the cost of a step follows the batch and not the size of the embedding. A row that was looked
up twice is in it twice; `sum_rows` adds such rows up before anything that is not linear, such as a norm or an
optimizer's squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import tensorflow as tf

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices
"""None in a list of gradients is that of a variable on which the loss doesn't depend."""


def values(gradient: Gradient) -> tf.Tensor:
    """The numbers of a gradient."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def map_gradients(
    change: Callable[[Gradient], Gradient], gradients: Iterable[Gradient | None]
) -> list[Gradient | None]:
    """Apply `change` to each gradient but None."""
    return [None if gradient is None else change(gradient) for gradient in gradients]


def map_values(change: Callable[[tf.Tensor], tf.Tensor], gradients: Iterable[Gradient | None]) -> list[Gradient | None]:
    """Apply `change`, under which zero stays zero, to the numbers of each gradient."""

    def changed(gradient: Gradient) -> Gradient:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)
        return change(gradient)

    return map_gradients(changed, gradients)


def add(one: Gradient | None, other: Gradient | None) -> Gradient | None:
    """The sum of two gradients of one variable."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, tf.IndexedSlices) and isinstance(other, tf.IndexedSlices):
        rows = tf.concat([one.values, other.values], 0)
        return tf.IndexedSlices(rows, tf.concat([one.indices, other.indices], 0), one.dense_shape)
    return tf.convert_to_tensor(one) + tf.convert_to_tensor(other)


def sum_rows(gradient: Gradient) -> Gradient:
    """The same gradient with each row once, summed in float32."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, segments = tf.unique(gradient.indices)
    rows = tf.math.unsorted_segment_sum(tf.cast(gradient.values, tf.float32), segments, tf.size(indices))
    return tf.IndexedSlices(tf.cast(rows, gradient.values.dtype), indices, gradient.dense_shape)
