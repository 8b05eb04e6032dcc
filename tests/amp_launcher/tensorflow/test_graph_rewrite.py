"""The graph rewrite's own function, by the rules of its page."""

from __future__ import annotations

import keras
import numpy
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from amp_launcher.tensorflow import graph_rewrite
from amp_launcher.tensorflow.observe.graphs import dtype_of
from amp_launcher.tensorflow.observe.products import base
from amp_launcher.tensorflow.precision import keras_loss_scale
from amp_launcher.typed import SettingsError

tf_keras = pytest.importorskip("tf_keras")

OPTIMIZERS = {
    "compat.v1": lambda: tf.compat.v1.train.GradientDescentOptimizer(1.0),
    "tf_keras legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
    "keras 3": lambda: keras.optimizers.SGD(1.0),
}
HALVES = {name: make for name, make in OPTIMIZERS.items() if name != "keras 3"}
"""Kinds whose `minimize` has two halves."""


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

        self.optimizer.minimize(loss, var_list=[self.weight])

    def run(self, *steps):
        """Scale and weight after each step."""
        seen = []
        for bad in steps:
            self.minimize(tf.constant(bad))
            seen.append((graph_rewrite.scale(self.optimizer), abs(self.weight.numpy()[0])))
        return seen


KINDS = tf.compat.v1.mixed_precision
GOOD, BAD = False, True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("loss_scale", "steps", "scales", "moved", "counted"),
    [
        (lambda: "dynamic", (GOOD, BAD, BAD, GOOD), [2.0**15, 2.0**14, 2.0**13, 2.0**13], [1.0, 1.0, 1.0, 2.0], 2),
        # Keras 3's own scale would go under 1.
        (lambda: KINDS.DynamicLossScale(initial_loss_scale=2.0), (BAD, BAD, BAD), [1.0] * 3, [0.0] * 3, 0),
        (
            lambda: KINDS.DynamicLossScale(initial_loss_scale=64.0, increment_period=2),
            (GOOD, GOOD, BAD),
            [64.0, 128.0, 64.0],
            [1.0, 2.0, 2.0],
            2,
        ),
        # With a static scale TensorFlow checks no gradient, and applies a bad step.
        (lambda: 128, (GOOD, GOOD, BAD), [128.0] * 3, [1.0, 2.0, numpy.inf], 3),
        (lambda: KINDS.FixedLossScale(64), (GOOD, BAD), [64.0, 64.0], [1.0, numpy.inf], 2),
    ],
)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_scale_moves_by_tensorflow_1s_rules(make, loss_scale, steps, scales, moved, counted):
    trained = Trained(make(), loss_scale())
    assert trained.run(*steps) == list(zip(scales, moved, strict=True))
    assert graph_rewrite.steps(trained.optimizer) == counted


SCALE = 'should be "dynamic", a finite number of at least 1, or a LossScale'
OTHERS = r"no optimizer of Keras 3 .*or of tf_keras\.optimizers.legacy"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        *(
            (lambda scale=scale: (OPTIMIZERS["tf_keras legacy"](), scale), SCALE)
            for scale in (0, 0.5, -1, None, "static", True, float("nan"), float("inf"), -float("inf"))
        ),
        (lambda: (OPTIMIZERS["keras 3"](), KINDS.FixedLossScale(float("inf"))), "loss_scale=inf should be"),
        (
            lambda: (OPTIMIZERS["keras 3"](), KINDS.DynamicLossScale(initial_loss_scale=float("inf"))),
            "loss_scale=inf should be",
        ),
        (lambda: (tf_keras.optimizers.SGD(1.0), "dynamic"), OTHERS),
        (lambda: ("sgd", "dynamic"), OTHERS),
        (
            lambda: (tf_keras.mixed_precision.LossScaleOptimizer(OPTIMIZERS["tf_keras legacy"]()), "dynamic"),
            "must not already be an instance of a LossScaleOptimizer",
        ),
    ],
)
def test_what_cannot_be_is_refused_also_where_tensorflow_accepts_it(asked, complaint):
    with pytest.raises(SettingsError, match=complaint):
        graph_rewrite.enable(*asked())


@pytest.fixture
def policy():
    """Sets a dtype policy for this test, of Keras 3 or of tf_keras."""
    setters = {keras: keras.config.set_dtype_policy, tf_keras: tf_keras.mixed_precision.set_global_policy}
    yield lambda library, name: setters[library](name)
    for setter in setters.values():
        setter("float32")


@pytest.mark.parametrize(
    ("library", "name"), [(keras, "mixed_bfloat16"), (keras, "bfloat16"), (tf_keras, "mixed_float16")]
)
def test_a_dtype_policy_is_refused(policy, library, name):
    policy(library, name)
    with pytest.raises(SettingsError, match=f"policy is {name}: use it or the graph rewrite, and not both"):
        graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_dtype_policy_that_is_set_later_is_refused_at_the_first_step_and_in_kerass_fit(policy, make):
    trained = Trained(make(), "dynamic")
    policy(keras, "mixed_bfloat16")
    with pytest.raises(RuntimeError, match="policy is mixed_bfloat16: use it or the graph rewrite, and not both"):
        trained.run(GOOD)
    if isinstance(trained.optimizer, keras.optimizers.Optimizer):
        with pytest.raises(RuntimeError, match="policy is mixed_bfloat16: use it or the graph rewrite"):
            fitted(tf.keras, trained.optimizer)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("which", ["what enable gave", "what enable was given"])
def test_wrapping_twice_says_so(make, which):
    optimizer = make()
    wrapped = graph_rewrite.enable(optimizer)
    with pytest.raises(SettingsError, match=r"scales the loss already: it was wrapped before"):
        graph_rewrite.enable(wrapped if which == "what enable gave" else optimizer)


def test_kerass_methods_that_are_replaced_are_there():
    kind = keras.optimizers.LossScaleOptimizer
    assert [name for name in (*keras_loss_scale.HANDLERS, "check_finite") if not hasattr(kind, name)] == []


@pytest.mark.parametrize("make", HALVES.values(), ids=HALVES)
def test_the_two_halves_of_minimize_may_be_called_one_after_the_other(make):
    """And gradients between them are those of the loss itself."""
    weight, optimizer = tf.Variable(tf.zeros(1)), graph_rewrite.enable(make(), 128)

    @tf.function
    def step():
        ((gradient, variable),) = optimizer.compute_gradients(lambda: -3 * tf.reduce_sum(weight), var_list=[weight])
        optimizer.apply_gradients([(gradient, variable)])
        return tf.reduce_sum(gradient)

    seen = [float(step()) for _ in range(2)]
    assert seen == [-3.0, -3.0]
    assert (weight.numpy()[0], graph_rewrite.steps(optimizer)) == (6.0, 2)


def fitted(library, optimizer, **compiled):
    """Three batches, the second of which is infinite; the dtypes of the matrix products that ran."""
    model = library.Sequential([library.layers.Dense(4, activation="relu"), library.layers.Dense(1)])
    model.compile(loss="mse", optimizer=optimizer, metrics=["mae"], **compiled)
    context.enable_graph_collection()
    context.export_run_metadata()
    inputs = numpy.ones((6, 4), numpy.float32)
    inputs[2:4] = numpy.inf
    model.fit(inputs, numpy.ones((6, 1), numpy.float32), batch_size=2, verbose=0, shuffle=False)
    nodes = [
        node for graph in context.export_run_metadata().function_graphs for node in graph.post_optimization_graph.node
    ]
    return {dtype_of(node) for node in nodes if base(node.op) == "MatMul"}


@pytest.mark.parametrize(
    ("library", "make"), [(tf_keras, OPTIMIZERS["tf_keras legacy"]), (tf.keras, OPTIMIZERS["keras 3"])]
)
def test_compile_and_fit_take_the_optimizer_as_the_page_has_it(library, make):
    optimizer = graph_rewrite.enable(make())
    assert fitted(library, optimizer) == {"bfloat16"}
    assert (graph_rewrite.steps(optimizer), graph_rewrite.scale(optimizer)) == (2, 2.0**14)


def test_disabled_it_rewrites_no_later_graph():
    optimizer = graph_rewrite.enable(OPTIMIZERS["keras 3"]())
    graph_rewrite.disable()
    assert fitted(tf.keras, optimizer) == {"float32"}


def test_xla_which_no_rewrite_reaches_is_kept_away_and_refused():
    optimizer = graph_rewrite.enable(OPTIMIZERS["keras 3"]())
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with pytest.raises(SettingsError, match="jit_compile=True: XLA bypasses the graph rewrite"):
        model.compile(loss="mse", optimizer=optimizer, jit_compile=True)
    model._resolve_auto_jit_compile = lambda: True  # as on a GPU
    model.compile(loss="mse", optimizer=optimizer)
    assert model.jit_compile is False
    model.compile(loss="mse", optimizer="sgd")
    assert model.jit_compile is True


def test_minimize_of_a_tensor_in_a_graph_of_tensorflow_1_trains_in_half_precision():
    with tf.Graph().as_default() as graph:
        inputs = tf.compat.v1.placeholder(tf.float32, (32, 64))
        weight = tf.compat.v1.get_variable("weight", (64, 64), use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weight) - 1.0))
        optimizer = graph_rewrite.enable(tf.compat.v1.train.AdamOptimizer(0.01))
        counted = tf.compat.v1.train.get_or_create_global_step()
        train_op = optimizer.minimize(loss, global_step=counted)
        metadata = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(tf.compat.v1.global_variables_initializer())
            fed = {inputs: numpy.ones((32, 64), numpy.float32)}
            session.run(train_op, {inputs: numpy.full((32, 64), numpy.inf, numpy.float32)})
            before = session.run(loss, fed)
            for _ in range(20):
                session.run(train_op, fed, options=options, run_metadata=metadata)
            after, steps = session.run([loss, counted], fed)
    products = [node for part in metadata.partition_graphs for node in part.node if base(node.op) == "MatMul"]
    assert {dtype_of(node) for node in products} == {"bfloat16"}
    assert (after < before / 2, steps) == (True, 20)
    with pytest.raises(RuntimeError, match="global_step"):
        graph_rewrite.steps(optimizer)


def test_a_gpu_without_tensor_cores_is_refused_where_tensorflow_would_rewrite_nothing(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": (6, 1)})
    with pytest.raises(SettingsError, match=r"needs compute capability 7\.0 .*, and this GPU has 6\.1"):
        graph_rewrite.enable(OPTIMIZERS["tf_keras legacy"]())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_outside_of_a_function_nothing_would_be_rewritten_and_that_is_an_error(make):
    trained = Trained(make(), "dynamic")
    with pytest.raises(RuntimeError, match="there is no graph to rewrite"):
        trained.optimizer.minimize(lambda: tf.reduce_sum(trained.weight), var_list=[trained.weight])
