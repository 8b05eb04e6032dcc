"""The MNIST recipe: `python -m recipes.mnist.train_tensorflow amp=o2 batch=512 [run=FOLDER]`."""

from __future__ import annotations

from amp_launcher.tensorflow import loop
from amp_launcher.tensorflow.loop import Run
from amp_launcher.tensorflow.supervised import channels_last, cross_entropy, make_measure, make_step

import keras
import tensorflow as tf
from keras import layers

from ..data import images
from . import MnistSettings

EPSILON = 1e-6
"""Of Adadelta, as in torch."""


def network(settings: MnistSettings) -> keras.Model:
    """Two convolutions and two dense layers: float images [batch, 28, 28, 1] to logits [batch, 10]."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu", name="conv1"),
            layers.Conv2D(64, 3, activation="relu", name="conv2"),
            layers.MaxPooling2D(name="pool"),
            layers.Dropout(settings.dropout_conv, name="dropout1"),
            layers.Flatten(name="flatten"),
            layers.Dense(128, activation="relu", name="dense1"),
            layers.Dropout(settings.dropout_dense, name="dropout2"),
            layers.Dense(10, name="dense2"),
        ],
        name="net",
    )


def train(run: Run) -> None:
    settings, hyper = run.settings, run.settings.train
    data = run.world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    inputs, labels = run.constant(channels_last(data.train.images)), run.constant(data.train.labels)

    net, optimizer = run.prepare(
        lambda: network(hyper), lambda: keras.optimizers.Adadelta(hyper.lr, rho=hyper.rho, epsilon=EPSILON)
    )

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        """The loss of one micro-batch, whose indices have shape [samples]."""
        return cross_entropy(tf.gather(labels, chosen), net(tf.gather(inputs, chosen), training=True))

    measure = make_measure(run, net)
    aside, count = channels_last(data.held_out.images), len(data.held_out)

    def evaluate() -> dict[str, float]:
        """Accuracy and mean loss on the held-out images, of which each process takes its share."""
        batches = ((aside[chosen], data.held_out.labels[chosen]) for chosen in run.held_out(count))
        return measure(batches, count)

    run.fit(
        models=[net],
        optimizers=[optimizer],
        step=make_step(run, optimizer, loss_of, hyper.clip),
        evaluate=evaluate if count else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {count:,} held out",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("mnist", train)
