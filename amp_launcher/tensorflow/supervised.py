"""What recipes that learn labels share: the step over micro-batches, and measures on held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy
import tensorflow as tf

from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.tensorflow.executor import Step
from amp_launcher.tensorflow.loop import Run


def make_step(
    run: Run, optimizer: keras.Optimizer, loss_of: Callable[[Any], tf.Tensor], clip: float | None = None
) -> Step:
    """A step that sums the gradients of its micro-batches; `loss_of` returns the float32 mean loss of one."""
    precision = run.precision

    def step(batch: Any) -> tuple[tf.Tensor, StepOutcome]:
        count = tf.nest.flatten(batch)[0].shape[0]
        total = tf.zeros(())
        for number in range(count):
            chosen = tf.nest.map_structure(lambda array, number=number: array[number], batch)
            with precision:
                loss = loss_of(chosen) / count
            precision.backward(loss)
            total += loss
        return total, precision.step(optimizer, clip=clip)

    return step


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The mean over samples, from integer labels and float32 logits."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def make_measure(run: Run, net: keras.Model) -> Callable[[Iterable[tuple[Any, Any]], int], dict[str, float]]:
    """From this process's batches, images and labels, of `count` samples, to accuracy and loss. Collective."""

    @tf.function(autograph=False)
    def batch_measures(inputs: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = net(inputs, training=False)
        right = tf.equal(tf.argmax(logits, 1, labels.dtype), labels)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(tf.cast(right, tf.float32)), tf.reduce_sum(losses)

    def measure(batches: Iterable[tuple[Any, Any]], count: int) -> dict[str, float]:
        correct, loss = 0.0, 0.0
        for inputs, labels in batches:
            right, losses = batch_measures(tf.convert_to_tensor(inputs), tf.convert_to_tensor(labels))
            correct, loss = correct + float(right), loss + float(losses)
        correct, loss = run.world.sum([correct, loss])
        return {"accuracy": correct / count, "loss": loss / count}

    return measure


def channels_last(images: numpy.ndarray) -> numpy.ndarray:
    """Images [count, channels, height, width] as [count, height, width, channels], TensorFlow's own layout."""
    return numpy.ascontiguousarray(images.transpose(0, 2, 3, 1))
