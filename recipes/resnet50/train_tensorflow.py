"""The ResNet-50 v1.5 recipe: `python -m recipes.resnet50.train_tensorflow amp=o2 batch=256 steps=500 [run=FOLDER]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_launcher.tensorflow import loop
from amp_launcher.tensorflow.loop import Run
from amp_launcher.tensorflow.optimizers import Momentum
from amp_launcher.tensorflow.supervised import cross_entropy, make_measure, make_step

import keras
import numpy
import tensorflow as tf
from amp_launcher.loop.prefetch import Prefetcher
from keras import layers

from .. import resnet50
from ..data import imagenet
from ..data.imagenet import DEVIATION, MEAN, ImageFiles
from . import STEPS_PER_EPOCH, Block, Resnet50Settings

NORM_EPSILON, NORM_MOMENTUM = 1e-5, 0.9
"""Those of torch's batch normalization."""


def convolution(inputs: Any, channels: int, kernel: int, stride: int, name: str) -> Any:
    """Padded by the same amount on all sides, as in torch, whatever the stride."""
    if kernel > 1:
        inputs = layers.ZeroPadding2D(kernel // 2, name=f"{name}_pad")(inputs)
    initializer = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return layers.Conv2D(channels, kernel, stride, use_bias=False, kernel_initializer=initializer, name=name)(inputs)


def norm(inputs: Any, name: str, gamma: str = "ones") -> Any:
    return layers.BatchNormalization(epsilon=NORM_EPSILON, momentum=NORM_MOMENTUM, gamma_initializer=gamma, name=name)(
        inputs
    )


def bottleneck(inputs: Any, block: Block) -> Any:
    """A block of `recipes.resnet50`: the stride is in the 3x3 convolution, and the last norm begins at zero."""
    name = block.name.replace(".", "_")
    outputs = layers.ReLU(name=f"{name}_relu1")(
        norm(convolution(inputs, block.width, 1, 1, f"{name}_reduce"), f"{name}_norm1")
    )
    outputs = layers.ReLU(name=f"{name}_relu2")(
        norm(convolution(outputs, block.width, 3, block.stride, f"{name}_conv"), f"{name}_norm2")
    )
    outputs = norm(convolution(outputs, block.outputs, 1, 1, f"{name}_expand"), f"{name}_norm3", gamma="zeros")
    if block.projects:
        inputs = norm(convolution(inputs, block.outputs, 1, block.stride, f"{name}_project"), f"{name}_norm4")
    return layers.ReLU(name=f"{name}_relu3")(layers.Add(name=f"{name}_add")([outputs, inputs]))


def network(settings: Resnet50Settings) -> keras.Model:
    """Float images [batch, size, size, 3] to logits [batch, classes]."""
    images = keras.Input((settings.image_size, settings.image_size, 3))
    outputs = norm(convolution(images, settings.width, 7, 2, "stem"), "norm")
    outputs = layers.ZeroPadding2D(1, name="pool_pad")(layers.ReLU(name="relu")(outputs))
    outputs = layers.MaxPooling2D(3, 2, name="pool")(outputs)  # after a ReLU, zeros are a right padding
    for block in resnet50.blocks(settings.width, settings.stages):
        outputs = bottleneck(outputs, block)
    outputs = layers.GlobalAveragePooling2D(name="mean")(outputs)
    return keras.Model(images, layers.Dense(settings.classes, name="classifier")(outputs), name="net")


def train(run: Run) -> None:
    settings, hyper, world = run.settings, run.settings.train, run.world
    net, optimizer = run.prepare(lambda: network(hyper), lambda: Momentum(hyper.lr, momentum=hyper.momentum))
    decayed = [weight for weight in net.trainable_variables if weight.name == "kernel"]  # no norm and no bias

    def loss_of(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Cross-entropy with smoothed labels. Weight decay adds to the gradient but not to the loss, as in torch."""
        logits = net(images, training=True)
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits))
        loss = (1 - hyper.label_smoothing) * cross_entropy(labels, logits) + hyper.label_smoothing * spread
        squares = tf.add_n([tf.nn.l2_loss(tf.cast(weight, tf.float32)) for weight in decayed])
        decay = hyper.weight_decay * squares
        return loss + decay - tf.stop_gradient(decay)

    common: dict[str, Any] = {"models": [net], "optimizers": [optimizer]}
    if settings.data.name == "synthetic":
        samples = STEPS_PER_EPOCH * settings.batch_size
        images, labels, digest = imagenet.synthetic(settings.seed, settings.batch_size, hyper.image_size, hyper.classes)
        micro_batch = settings.batch_size // (settings.accumulate * world.devices)
        inputs, truth = run.constant(normalized(images[:micro_batch])), run.constant(labels[:micro_batch])
        run.fit(
            **common,
            step=make_step(run, optimizer, lambda chosen: loss_of(tf.convert_to_tensor(inputs), truth)),
            evaluate=None,
            samples=samples,
            schedule=resnet50.schedule(settings, samples),
            data=f"one random batch of {hyper.image_size}x{hyper.image_size} images again and again",
            data_digest=digest,
        )
        return

    training, held_out = world.rank_zero_first(lambda: imagenet.load(settings.data, hyper.image_size, hyper.classes))
    measure = make_measure(run, net)
    run.fit(
        **common,
        step=make_step(run, optimizer, lambda batch: loss_of(normalized(batch[0]), batch[1])),
        load=lambda epoch, indices: training.augmented(settings.seed, epoch, indices),
        evaluate=lambda: measure(_batches(run, held_out), len(held_out)),
        samples=len(training),
        schedule=resnet50.schedule(settings, len(training)),
        data=f"{settings.data.name}: {len(training):,} images, {len(held_out):,} held out",
        data_digest=training.digest(),
    )


def normalized(images: Any) -> Any:
    """Bytes [batch, height, width, 3] as floats around zero."""
    if isinstance(images, numpy.ndarray):
        mean, deviation = (numpy.array(values, numpy.float32) for values in (MEAN, DEVIATION))
        return (images.astype(numpy.float32) / 255 - mean) / deviation
    return (tf.cast(images, tf.float32) / 255 - tf.constant(MEAN)) / tf.constant(DEVIATION)


def _batches(run: Run, unseen: ImageFiles) -> Iterator[tuple[Any, Any]]:
    """This process's held-out images, loaded ahead."""
    positions = list(run.held_out(len(unseen), max(1, run.settings.batch_size // run.world.size)))
    prefetcher = Prefetcher(unseen.plain)
    prefetcher.start(iter(positions))
    for _ in positions:
        (images, labels), _ = prefetcher.take()
        yield normalized(images), labels


if __name__ == "__main__":
    loop.start("resnet50", train)
