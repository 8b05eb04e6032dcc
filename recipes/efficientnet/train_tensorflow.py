"""The EfficientNet recipe: `python -m recipes.efficientnet.train_tensorflow amp=o2 data.dir=FOLDER [run=FOLDER]`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amp_launcher.tensorflow import loop
from amp_launcher.tensorflow.loop import Run
from amp_launcher.tensorflow.supervised import channels_last, cross_entropy, make_measure, make_step

import keras
import numpy
import tensorflow as tf
from keras import layers

from .. import efficientnet
from ..data import cifar
from ..data.images import Images
from . import ADAM_EPSILON, CLASSES, HEAD, NORM_EPSILON, NORM_MOMENTUM, STEM, Block, EfficientnetSettings


def convolution(inputs: Any, channels: int, kernel: int, stride: int, name: str) -> Any:
    return layers.Conv2D(channels, kernel, stride, padding="same", name=name)(inputs)


def norm(inputs: Any, name: str) -> Any:
    return layers.BatchNormalization(epsilon=NORM_EPSILON, momentum=NORM_MOMENTUM, name=name)(inputs)


def relu(inputs: Any, name: str) -> Any:
    return layers.ReLU(max_value=6, name=name)(inputs)


def inverted_residual(inputs: Any, block: Block) -> Any:
    """A block of `amp_launcher.recipes.efficientnet`."""
    name = block.name.replace(".", "_")
    outputs = relu(norm(convolution(inputs, block.expanded, 1, 1, f"{name}_expand"), f"{name}_norm1"), f"{name}_relu1")
    depthwise = layers.DepthwiseConv2D(block.kernel, block.stride, padding="same", name=f"{name}_depthwise")
    outputs = relu(norm(depthwise(outputs), f"{name}_norm2"), f"{name}_relu2")
    share = layers.GlobalAveragePooling2D(keepdims=True, name=f"{name}_mean")(outputs)
    share = relu(convolution(share, block.squeezed, 1, 1, f"{name}_squeeze"), f"{name}_relu3")
    share = layers.Activation("sigmoid", name=f"{name}_share")(
        convolution(share, block.expanded, 1, 1, f"{name}_excite")
    )
    outputs = layers.Multiply(name=f"{name}_scaled")([share, outputs])
    outputs = norm(convolution(outputs, block.outputs, 1, 1, f"{name}_project"), f"{name}_norm3")
    return layers.Add(name=f"{name}_add")([outputs, inputs]) if block.adds else outputs


def network(settings: EfficientnetSettings) -> keras.Model:
    """Float images [batch, size, size, 3] to logits [batch, 100]; weights by Glorot, as Keras has it."""
    images = keras.Input((settings.side, settings.side, 3))
    outputs = relu(norm(convolution(images, settings.channels(STEM), 3, 2, "stem"), "norm1"), "relu1")
    for block in efficientnet.blocks(settings):
        outputs = inverted_residual(outputs, block)
    outputs = relu(norm(convolution(outputs, settings.channels(HEAD), 1, 1, "head"), "norm2"), "relu2")
    outputs = layers.GlobalAveragePooling2D(name="mean")(outputs)
    return keras.Model(images, layers.Dense(CLASSES, name="classifier")(outputs), name="net")


def train(run: Run) -> None:
    settings, hyper, world = run.settings, run.settings.train, run.world
    data = world.rank_zero_first(lambda: cifar.load(settings.data, settings.seed))
    images, labels = run.constant(channels_last(data.train.images)), run.constant(data.train.labels)
    unseen = {"": data.validation, "test_": data.test}

    net, optimizer = run.prepare(lambda: network(hyper), lambda: keras.optimizers.Adam(hyper.lr, epsilon=ADAM_EPSILON))

    def resized(pixels: Any) -> tf.Tensor:
        """Bytes [batch, 32, 32, 3] as floats from 0 to 1 [batch, size, size, 3]."""
        return tf.image.resize(pixels, 2 * (hyper.side,)) / 255

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        return cross_entropy(tf.gather(labels, chosen), net(resized(tf.gather(images, chosen)), training=True))

    measure = make_measure(run, net)

    def batches(part: Images) -> Iterator[tuple[tf.Tensor, numpy.ndarray]]:
        for chosen in run.held_out(len(part), max(1, settings.batch_size // world.size)):
            yield resized(channels_last(part.images[chosen])), part.labels[chosen]

    def evaluate() -> dict[str, float]:
        """Measures of the validation images, and of the test images, by which nothing is chosen."""
        measures = {}
        for prefix, part in unseen.items():
            for name, value in measure(batches(part), len(part)).items():
                measures[prefix + name] = value
        return measures

    run.fit(
        models=[net],
        optimizers=[optimizer],
        step=make_step(run, optimizer, loss_of),
        evaluate=evaluate if len(data.test) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.validation):,} held out, {len(data.test):,} to test",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("efficientnet", train)
