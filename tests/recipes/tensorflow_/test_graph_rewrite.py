"""The graph rewrite's own function, by the rules of its page."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf

from recipes.levels import Amp, LossScale
from recipes.tensorflow_ import graph_rewrite
from recipes.tensorflow_.observe import Witness
from recipes.tensorflow_.precision import Precision
from recipes.typed import SettingsError

tf_keras = pytest.importorskip("tf_keras")

OPTIMIZERS = {
    "compat.v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
    "tf_keras legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
}


@pytest.fixture(autouse=True)
def off_again():
    yield
    graph_rewrite.disable()


class Trained:
    """One weight that moves by 1 in every good step; a bad one has an infinite loss."""

    def __init__(self, optimizer, loss_scale):
        self.weight = tf.Variable(tf.zeros(1))
        self.optimizer = graph_rewrite.enable(optimizer, loss_scale)
        self.minimize = tf.function(self._minimize)

    def _minimize(self, bad):
        def loss():
            return -tf.reduce_sum(self.weight) * tf.where(bad, float("inf"), 1.0)

        self.optimizer.minimize(loss, [self.weight])

    def run(self, *steps):
        scales = []
        for bad in steps:
            self.minimize(tf.constant(bad))
            scales.append(self.optimizer.scale)
        return scales


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_bad_step_is_skipped_is_not_counted_and_halves_a_dynamic_scale(make):
    trained = Trained(make(), "dynamic")
    assert trained.run(False, True, True, False) == [2.0**15, 2.0**14, 2.0**13, 2.0**13]
    assert trained.weight.numpy() == [2.0]
    assert trained.optimizer.steps == 2


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_number_is_a_scale_that_stays(make):
    trained = Trained(make(), 128)
    assert set(trained.run(False, False, False)) == {128.0}
    assert trained.weight.numpy() == [3.0]


@pytest.mark.parametrize(
    "make",
    [lambda: keras.optimizers.SGD(1.0), lambda: tf_keras.optimizers.SGD(1.0), lambda: "sgd"],
    ids=["keras 3", "tf_keras", "text"],
)
def test_other_optimizers_are_refused_and_told_of_the_level_that_takes_them(make):
    with pytest.raises(SettingsError, match=r"tf_keras\.optimizers.legacy, .*for one of Keras 3 say amp=o1"):
        graph_rewrite.enable(make())


def test_an_optimizer_that_scales_already_is_refused():
    inner = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.legacy.SGD(1.0))
    with pytest.raises(SettingsError, match="must not already be an instance of a LossScaleOptimizer"):
        graph_rewrite.enable(inner)


@pytest.mark.parametrize("scale", [0, 0.5, -1, None, "static", True, float("nan")])
def test_a_scale_that_cannot_be_is_refused_where_tensorflow_takes_some(scale):
    with pytest.raises((SettingsError, TypeError)):
        graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"](), scale)


def test_a_mixed_policy_of_keras_3_is_refused_where_tensorflow_sees_none():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        with pytest.raises(SettingsError, match="mixed_bfloat16: use it or the graph rewrite, and not both"):
            graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())
    finally:
        keras.config.set_dtype_policy("float32")


def test_outside_of_a_function_nothing_would_be_rewritten_and_that_is_an_error():
    trained = Trained(OPTIMIZERS["compat.v1"](), "dynamic")
    with pytest.raises(RuntimeError, match="there is no graph to rewrite"):
        trained.optimizer.minimize(lambda: tf.reduce_sum(trained.weight), [trained.weight])


@pytest.mark.parametrize(("on", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_graphs_are_rewritten_while_it_is_on(on, dtype):
    precision = Precision.of(Amp(level="o0"), LossScale(), "cpu")
    model = precision.build(lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)]))
    weights = [each.value for each in model.trainable_variables]
    optimizer = graph_rewrite.enable(OPTIMIZERS["compat.v1"](), 128)
    if not on:
        graph_rewrite.disable()
    witness = Witness([model], precision)
    inputs = tf.constant(numpy.ones((32, 64), numpy.float32))

    @tf.function(autograph=False)
    def step():
        optimizer.minimize(lambda: tf.reduce_mean(tf.square(model(inputs))), weights)

    with witness.step(1):
        step()
    assert {call["dtype"] for call in witness.reports[0]["calls"]} == {dtype}
    assert {call["backward"] for call in witness.reports[0]["calls"]} == {True, False}
