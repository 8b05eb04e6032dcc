"""What the replicas of a `tf.distribute` strategy do together in one optimizer step.

Gradients are averaged over the replicas once, before they are looked at for overflows and clipped. A Keras optimizer
would add them up again as it applies them, so it is kept from that. The step is taken, or not, in the context that
spans the replicas: under `MirroredStrategy` no replica can call the others from inside of a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from recipes.tensorflow_.precision.gradients import Gradient

REDUCES = "_all_reduce_sum_gradients"
"""Keras 3's method that adds gradients up over the replicas; a test holds that it is there."""

PRIME = 1_000_003
"""Between the seeds of two replicas, so that one's next isn't the other's."""


def leave_reducing_to_us(optimizer: keras.Optimizer) -> None:
    """Keep a Keras optimizer from adding up what `mean` has averaged already."""
    if not hasattr(optimizer, REDUCES):
        raise RuntimeError(f"this Keras ({keras.__version__}) has no Optimizer.{REDUCES}; 3.0 to 3.15 have")
    setattr(optimizer, REDUCES, list)


def mean(gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
    """The mean of each gradient over the replicas, on every replica."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return list(gradients)
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, [each for each in gradients if each is not None]))
    return [None if each is None else next(reduced) for each in gradients]


def apply(optimizer: keras.Optimizer, gradients: Sequence[Gradient | None], unless: tf.Tensor | None) -> None:
    """Let the optimizer take its step with gradients that all replicas have in common, unless `unless` is true."""
    if unless is None:
        optimizer.apply(gradients)
        return
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        tf.cond(unless, lambda: None, lambda: optimizer.apply(gradients))
        return
    present = [each for each in gradients if each is not None]
    places = [index for index, each in enumerate(gradients) if each is not None]

    def step(*found: Gradient) -> None:
        whole: list[Gradient | None] = [None] * len(gradients)
        for index, each in zip(places, found, strict=True):
            whole[index] = each
        optimizer.apply(whole)

    def of_all(strategy: tf.distribute.Strategy, bad: Any, *found: Any) -> None:
        first = strategy.experimental_local_results(bad)[0]
        tf.cond(first, lambda: None, lambda: _each(strategy, step, found))

    context.merge_call(of_all, args=(unless, *present))


def _each(strategy: tf.distribute.Strategy, step: Any, arguments: Sequence[Any]) -> None:
    strategy.extended.call_for_each_replica(step, args=tuple(arguments))


def apart(seed: tf.Tensor) -> tf.Tensor:
    """A seed, of two integers, that is another on every replica."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return seed
    replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    return tf.stack([seed[0], seed[1] + replica * PRIME])


def draw_apart(model: keras.Model) -> None:
    """Have each replica draw its own dropout: Keras's generators are variables, alike on all replicas."""
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            draw = generator.next
            generator.next = lambda ordered=True, draw=draw: apart(draw(ordered))
