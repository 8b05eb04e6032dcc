"""Small models, and a training loop in TensorFlow that is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy
import tensorflow as tf
from keras import layers

from amp_launcher.precision import verdict
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.tensorflow.observe.observer import PrecisionObserver
from amp_launcher.tensorflow.precision import Mechanism, precision_of

BATCH = 4
FORWARD = {"Conv2D": 2 * BATCH * (100 * 16 * 9 + 64 * 24 * 9 * 16), "MatMul": 2 * BATCH * (16 * 24 * 32 + 32 * 10)}
"""The work of the network's forward, by hand: 12x12 to 10x10 to 8x8, pooled to 4x4."""
BACKWARD = {
    "Conv2DBackpropFilter": FORWARD["Conv2D"],
    "Conv2DBackpropInput": 2 * BATCH * 64 * 24 * 9 * 16,
    "MatMul": 2 * FORWARD["MatMul"],
}


def network() -> keras.Model:
    """Two convolutions with a norm and two dense layers, on images of [batch, 12, 12, 1]."""
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(16, 3, activation="relu", name="conv1"),
            layers.BatchNormalization(name="norm"),
            layers.Conv2D(24, 3, name="conv2"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(32, activation="relu", name="dense"),
            layers.Dense(10, name="head"),
        ]
    )


def dense_network() -> keras.Model:
    """Two dense layers, on the same images."""
    return keras.Sequential([keras.Input((12, 12, 1)), layers.Flatten(), layers.Dense(64), layers.Dense(10)])


class Training:
    """A training run of a few steps, of which some are watched."""

    def __init__(
        self,
        amp: Amp,
        make: Callable[[], keras.Model] = network,
        *,
        scale: LossScale | None = None,
        xla: bool = False,
        optimizer: Callable[[], keras.Optimizer] = lambda: keras.optimizers.SGD(0.01),
        function: Callable[..., Any] = tf.function,
        clip: float | None = None,
    ) -> None:
        keras.utils.set_random_seed(0)
        self.precision = precision_of(Mechanism.of(amp, scale or LossScale(init=8.0), "cpu", xla=xla))
        self.model, self.optimizer = self.precision.prepare(make, optimizer())
        random = numpy.random.Generator(numpy.random.Philox(1))
        self.images = random.random((BATCH, *self.model.input_shape[1:]), dtype=numpy.float32)
        self.labels = random.integers(0, 10, BATCH)
        self.clip = clip
        self.execute = function(self.step, autograph=False, jit_compile=xla) if function is tf.function else self.step
        self.observer = PrecisionObserver([self.model], [self.optimizer], self.precision.resolved)

    def forward(self, images: tf.Tensor) -> tf.Tensor:
        return self.model(images, training=True)

    def step(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with self.precision:
            logits = tf.cast(self.forward(images), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        self.precision.backward(loss)
        self.precision.step(self.optimizer, clip=self.clip)
        return loss

    def run(self, steps: int = 3, watched: Collection[int] = (1, 3)) -> dict[str, Any]:
        """What was observed."""
        images, labels = tf.constant(self.images), tf.constant(self.labels)
        for number in range(1, steps + 1):
            with self.observer.step(number) if number in watched else contextlib.nullcontext():
                self.execute(images, labels)
        return verdict.observed(self.observer.reports, watched)
