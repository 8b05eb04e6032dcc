"""The simplenet recipe: `python -m recipes.simplenet.train_tensorflow amp=o2 [train.width=256] [run=FOLDER]`."""

from __future__ import annotations

from amp_launcher.tensorflow import loop
from amp_launcher.tensorflow.loop import Run
from amp_launcher.tensorflow.supervised import make_step

import keras
import tensorflow as tf
from keras import layers

from ..data import random_regression
from . import STEPS_PER_EPOCH, SimplenetSettings


def network(settings: SimplenetSettings) -> keras.Model:
    """Linear layers with nothing between them: [batch, width] to [batch, width]; weights by Glorot, as Keras has it."""
    linears = [layers.Dense(settings.width, name=f"linears_{index}") for index in range(settings.layers)]
    return keras.Sequential([keras.Input((settings.width,)), *linears], name="net")


def train(run: Run) -> None:
    settings, hyper = run.settings, run.settings.train
    data = random_regression.load(settings.seed, STEPS_PER_EPOCH * settings.batch_size, hyper.width)
    inputs, labels = run.constant(data.inputs), run.constant(data.labels)

    net, optimizer = run.prepare(lambda: network(hyper), lambda: keras.optimizers.SGD(hyper.lr))

    def loss_of(chosen: tf.Tensor) -> tf.Tensor:
        outputs = net(tf.gather(inputs, chosen), training=True)
        return tf.reduce_mean(tf.square(outputs - tf.gather(labels, chosen)))

    run.fit(
        models=[net],
        optimizers=[optimizer],
        step=make_step(run, optimizer, loss_of),
        evaluate=None,
        samples=len(data),
        data=f"random numbers: {len(data):,} pairs of {hyper.width:,}",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("simplenet", train)
