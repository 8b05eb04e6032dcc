"""Collectives of the replicas of a `tf.distribute` strategy in an optimizer step.

Gradients are averaged over the replicas once, before they are checked for overflows and clipped; a Keras optimizer must
not sum them again. Whether the step is applied is decided in the context that spans the replicas: under
`MirroredStrategy` a replica can't call the others from inside a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from amp_launcher.tensorflow.precision.gradients import Gradient

REDUCES = "_all_reduce_sum_gradients"
"""The method by which a Keras 3 optimizer sums gradients over the replicas; a test checks that it exists."""

PRIME = 1_000_003
"""Distance between the seeds of two replicas, so that one's next seed isn't the other's."""


def disable_reduction(optimizer: keras.Optimizer) -> None:
    """Keep a Keras optimizer from summing what `mean` has averaged."""
    if not hasattr(optimizer, REDUCES):
        raise RuntimeError(f"this Keras ({keras.__version__}) has no Optimizer.{REDUCES}; 3.0 to 3.15 have")
    setattr(optimizer, REDUCES, list)


def mean(gradients: Sequence[Gradient | None]) -> list[Gradient | None]:
    """The mean of each gradient over the replicas, on every replica."""
    context = _several_replicas()
    if context is None:
        return list(gradients)
    present = [gradient for gradient in gradients if gradient is not None]
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, present))
    return [None if gradient is None else next(reduced) for gradient in gradients]


def apply(
    step: Callable[[list[Gradient | None]], Any], gradients: Sequence[Gradient | None], unless: tf.Tensor | None
) -> None:
    """Call an optimizer's `step` with gradients that are the same on all replicas, unless `unless` is true."""
    if unless is None:
        step(list(gradients))
        return
    context = _several_replicas()
    if context is None:
        tf.cond(unless, lambda: None, lambda: step(list(gradients)))
        return
    indices = [index for index, gradient in enumerate(gradients) if gradient is not None]

    def step_replica(*present: Gradient) -> None:
        complete: list[Gradient | None] = [None] * len(gradients)
        for index, gradient in zip(indices, present, strict=True):
            complete[index] = gradient
        step(complete)

    def step_all(strategy: tf.distribute.Strategy, skip: Any, *present: Any) -> None:
        first = strategy.experimental_local_results(skip)[0]
        tf.cond(first, lambda: None, lambda: _call_each_replica(strategy, step_replica, present))

    context.merge_call(step_all, args=(unless, *(gradients[index] for index in indices)))


def _call_each_replica(strategy: tf.distribute.Strategy, function: Any, arguments: Sequence[Any]) -> None:
    strategy.extended.call_for_each_replica(function, args=tuple(arguments))


def _several_replicas() -> Any:
    """The replica context where there are several replicas, else None."""
    context = tf.distribute.get_replica_context()
    return None if context is None or context.num_replicas_in_sync == 1 else context


def seed_for_replica(seed: tf.Tensor) -> tf.Tensor:
    """A seed of two integers, made different on every replica."""
    context = _several_replicas()
    if context is None:
        return seed
    replica = tf.cast(context.replica_id_in_sync_group, seed.dtype)
    return tf.stack([seed[0], seed[1] + replica * PRIME])


def separate_dropout(model: keras.Model) -> None:
    """Have each replica draw its own dropout: Keras's seed generators are variables, the same on all replicas."""
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            draw = generator.next
            generator.next = lambda ordered=True, draw=draw: seed_for_replica(draw(ordered))
