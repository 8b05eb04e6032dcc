"""The graph rewrite's own function, by the rules of its page."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from recipes.levels import Amp, LossScale
from recipes.tensorflow_ import graph_rewrite
from recipes.tensorflow_.graphs import dtype_of
from recipes.tensorflow_.observe import Witness
from recipes.tensorflow_.operations import base
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


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_two_halves_of_minimize_may_be_called_one_after_the_other(make):
    """And gradients between them are those of the loss itself."""
    weight, optimizer = tf.Variable(tf.zeros(1)), graph_rewrite.enable(make(), 128)

    @tf.function
    def step():
        ((gradient, variable),) = optimizer.compute_gradients(lambda: -3 * tf.reduce_sum(weight), [weight])
        optimizer.apply_gradients([(gradient, variable)])
        return tf.reduce_sum(gradient)

    seen = [float(step()) for _ in range(2)]
    assert seen == [-3.0, -3.0]
    assert (weight.numpy()[0], optimizer.steps) == (6.0, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_loss_scale_of_tensorflows_own_is_taken(make):
    kinds = tf.compat.v1.mixed_precision
    trained = Trained(make(), kinds.FixedLossScale(64))
    assert set(trained.run(False, True)) == {64.0}
    trained = Trained(make(), kinds.DynamicLossScale(initial_loss_scale=64.0, increment_period=2))
    assert trained.run(False, False, True) == [64.0, 128.0, 64.0]


def test_kerass_compile_and_fit_take_the_optimizer_inside_and_its_steps_are_counted():
    optimizer = graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())
    model = tf_keras.Sequential([tf_keras.layers.Dense(4, input_shape=(4,)), tf_keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=optimizer.inner)
    context.enable_graph_collection()
    context.export_run_metadata()
    inputs = numpy.ones((6, 4), numpy.float32)
    inputs[2:4] = numpy.inf
    model.fit(inputs, numpy.ones((6, 1), numpy.float32), batch_size=2, verbose=0, shuffle=False)
    assert (optimizer.steps, optimizer.scale, int(optimizer.inner.iterations)) == (2, 2.0**14, 3)
    nodes = [
        node for each in context.export_run_metadata().function_graphs for node in each.post_optimization_graph.node
    ]
    assert {dtype_of(node) for node in nodes if base(node.op) == "MatMul"} == {"bfloat16"}


@pytest.mark.parametrize("scale", [0, 0.5, -1, None, "static", True, float("nan")])
def test_a_scale_that_cannot_be_is_refused_where_tensorflow_takes_some(scale):
    with pytest.raises(SettingsError, match='should be "dynamic", a number of at least 1, or a LossScale'):
        graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"](), scale)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_a_policy_of_keras_3_is_refused_where_tensorflow_sees_none(policy):
    keras.config.set_dtype_policy(policy)
    try:
        with pytest.raises(SettingsError, match=f"policy is {policy}: use it or the graph rewrite, and not both"):
            graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("policy", ["mixed_float16", "bfloat16"])
def test_a_policy_of_tf_keras_is_refused(policy):
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
        with pytest.raises(SettingsError, match=f"policy is {policy}: use it or the graph rewrite, and not both"):
            graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def test_a_gpu_without_tensor_cores_is_refused_where_tensorflow_would_rewrite_nothing(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": (6, 1)})
    with pytest.raises(SettingsError, match=r"needs compute capability 7\.0 .*, and this GPU has 6\.1"):
        graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())


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
