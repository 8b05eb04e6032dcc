"""The GAN recipe: `python -m recipes.gan.train_tensorflow amp=o2 data.dir=FOLDER batch=4096 [run=FOLDER]`."""

from __future__ import annotations

from typing import Any

from amp_launcher.tensorflow import loop
from amp_launcher.tensorflow.loop import Loss, Run
from amp_launcher.tensorflow.optimizers import RMSprop
from amp_launcher.tensorflow.supervised import channels_last

import keras
import numpy
import tensorflow as tf
from amp_launcher.precision.step_outcome import StepOutcome
from keras import layers

from ..data import images
from . import (
    DISCRIMINATOR,
    DROPOUT,
    EPSILON,
    KERNEL,
    NOISE,
    NORM_EPSILON,
    NORM_MOMENTUM,
    RMSPROP_DECAY,
    SEED_SIDE,
    GanSettings,
)


def convolution(channels: int, activation: str, name: str) -> keras.Layer:
    return layers.Conv2D(channels, KERNEL, padding="same", activation=activation, name=name)


def norm(name: str) -> keras.Layer:
    return layers.BatchNormalization(epsilon=NORM_EPSILON, momentum=NORM_MOMENTUM, name=name)


def generator_network(settings: GanSettings) -> keras.Model:
    """Noise [batch, 100] to images [batch, 28, 28, 1] from 0 to 1."""
    first, second, third, fourth = settings.channels
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(SEED_SIDE**2 * first, name="dense"),
            layers.Reshape((SEED_SIDE, SEED_SIDE, first), name="image"),
            norm("norm1"),
            convolution(second, "tanh", "conv1"),
            layers.UpSampling2D(name="larger1"),
            norm("norm2"),
            convolution(third, "tanh", "conv2"),
            layers.UpSampling2D(name="larger2"),
            norm("norm3"),
            convolution(fourth, "tanh", "conv3"),
            norm("norm4"),
            convolution(1, "sigmoid", "conv4"),
        ],
        name="generator",
    )


def discriminator_network() -> keras.Model:
    """Images [batch, 28, 28, 1] to logits [batch, 1], high for images judged to be generated."""
    stack: list[Any] = [keras.Input((28, 28, 1))]
    for number, channels in enumerate(DISCRIMINATOR, start=1):
        stack += [
            convolution(channels, "tanh", f"conv{number}"),
            layers.MaxPooling2D(name=f"pool{number}"),
            layers.Dropout(DROPOUT, name=f"dropout{number}"),
        ]
    stack += [layers.Flatten(name="flatten"), layers.Dense(1, name="dense")]
    return keras.Sequential(stack, name="discriminator")


def train(run: Run) -> None:
    settings, hyper, precision = run.settings, run.settings.train, run.precision
    data = run.world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    real = run.constant(channels_last(data.train.images))

    generator, generator_optimizer = run.prepare(
        lambda: generator_network(hyper), lambda: keras.optimizers.Adam(hyper.generator_lr, epsilon=EPSILON)
    )
    discriminator, discriminator_optimizer = run.prepare(
        discriminator_network, lambda: RMSprop(hyper.discriminator_lr, rho=RMSPROP_DECAY, epsilon=EPSILON)
    )

    def generated(count: int) -> tf.Tensor:
        noise = tf.random.stateless_uniform((count, NOISE), run.seed(), -1, 1)
        return generator(noise, training=True)

    def generator_loss(chosen: tf.Tensor) -> tf.Tensor:
        """Low where the discriminator judges generated images to be real, whose label is 0."""
        logits = discriminator(generated(chosen.shape[0]), training=True)
        return binary_cross_entropy(logits, labels(chosen.shape[0], hyper)[: chosen.shape[0]])

    def discriminator_loss(chosen: tf.Tensor) -> tf.Tensor:
        """Of as many real images as generated ones."""
        both = tf.concat((tf.gather(real, chosen), generated(chosen.shape[0])), 0)
        logits = discriminator(both, training=True)
        return binary_cross_entropy(logits, labels(chosen.shape[0], hyper))

    def step(batch: tf.Tensor) -> tuple[Loss, StepOutcome]:
        """The generator's update, and then the discriminator's against the new generator; loss scales move once."""
        losses, outcomes = {}, []
        for name, optimizer, loss_of in (
            ("generator", generator_optimizer, generator_loss),
            ("discriminator", discriminator_optimizer, discriminator_loss),
        ):
            losses[name] = tf.zeros(())
            for chosen in tf.unstack(batch):
                with precision:
                    loss = loss_of(chosen) / batch.shape[0]
                precision.backward(loss, optimizer)
                losses[name] += loss
            outcomes.append(precision.step(optimizer))
        return losses, either(*outcomes)

    run.fit(
        models=[generator, discriminator],
        optimizers=[generator_optimizer, discriminator_optimizer],
        step=step,
        evaluate=None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images",
        data_digest=data.digest(),
    )


def binary_cross_entropy(logits: tf.Tensor, labels: numpy.ndarray) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def labels(count: int, settings: GanSettings) -> numpy.ndarray:
    """Labels near 0 for `count` real images and near 1 for `count` generated ones: [2 * count, 1].

    The first `settings.sharp` of each half are exact.
    """
    softened = numpy.full((count, 1), settings.soften, numpy.float32)
    softened[: int(count * settings.sharp)] = 0
    return numpy.concatenate((softened, 1 - softened))


def either(first: StepOutcome, second: StepOutcome) -> StepOutcome:
    """The outcome of two optimizers' steps: whether one of them overflowed, and the lower loss scale."""
    if first.overflowed is None or second.overflowed is None:
        return StepOutcome()
    return StepOutcome(
        overflowed=tf.logical_or(first.overflowed, second.overflowed),
        loss_scale=tf.minimum(first.loss_scale, second.loss_scale),
    )


if __name__ == "__main__":
    loop.start("gan", train)
