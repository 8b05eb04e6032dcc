"""What each level does to a training step in TensorFlow, beside the plain thing written out."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.tensorflow.observe import float32_probe
from amp_launcher.tensorflow.observe.graphs import dtype_of
from amp_launcher.tensorflow.observe.products import base
from amp_launcher.tensorflow.precision import Mechanism, Precision, replicas
from amp_launcher.tensorflow.precision.loss_scale import make_scaler
from tests.amp_launcher.tensorflow.observed_runs import Training, dense_network, network


def of(level, dtype="auto", scale=None, **amp):
    return Mechanism.of(Amp(level=level, dtype=dtype, **amp), scale or LossScale(), "cpu")


def weights(model):
    return [numpy.array(variable.numpy(), numpy.float32) for variable in model.trainable_variables]


@pytest.mark.parametrize("on", [False, True])
def test_tf32_which_tensorflow_has_on_is_switched_as_resolved(on):
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(not on)
    Mechanism.apply(replace(of("o0").resolved, tf32=on))
    assert tf.config.experimental.tensor_float_32_execution_enabled() is on
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize(
    ("amp", "scale", "policy", "tolerance"),
    [
        (Amp(level="o0"), LossScale(), "float32", 0.0),
        (Amp(level="o2", dtype="float16"), LossScale(mode="dynamic", init=2.0**15), "mixed_float16", 1e-6),
    ],
    ids=["o0 bit for bit", "o2 to float32 rounding"],
)
def test_a_level_trains_as_a_plain_loop_with_keras_own_policy_and_loss_scale(amp, scale, policy, tolerance):
    ours = Training(amp, scale=scale)
    ours.run(watched=())
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.SGD(0.01)
    if amp.level != "o0":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale.init)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            scaled = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(scaled, [variable.value for variable in variables]), variables)

    for _ in range(3):
        step(tf.constant(ours.images), tf.constant(ours.labels))
    for one, variable in zip(weights(ours.model), model.trainable_variables, strict=True):
        assert numpy.allclose(one, variable.numpy(), rtol=tolerance, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o3_loses_small_updates_and_o2_does_not(dtype):
    """What is less than half of a weight's last bit, a half-precision weight doesn't take."""
    moved = {}
    for level in ("o0", "o2", "o3"):
        amp = Amp(level=level) if level == "o0" else Amp(level=level, dtype=dtype)
        training = Training(amp, dense_network, scale=LossScale(), optimizer=lambda: keras.optimizers.SGD(1e-6))
        before = weights(training.model)
        training.run(steps=5, watched=())
        changed = [one != other for one, other in zip(weights(training.model), before, strict=True)]
        moved[level] = sum(array.sum() for array in changed) / sum(array.size for array in changed)
    assert moved["o2"] > 0.9 * moved["o0"]
    assert moved["o3"] < 0.3 * moved["o0"]


class Accumulating(Training):
    """The same step from two micro-batches of half the size."""

    def step(self, images, labels):
        total = tf.zeros(())
        for some, named in zip(tf.split(images, 2), tf.split(labels, 2), strict=True):
            with self.precision:
                logits = self.forward(some)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(named, logits)) / 2
            self.precision.backward(loss)
            total += loss
        self.precision.step(self.optimizer, clip=self.clip)
        return total


def test_a_micro_batch_begins_when_the_one_before_it_is_done():
    parts = Accumulating(Amp(level="o0"), dense_network)
    graph = parts.execute.get_concrete_function(tf.constant(parts.images), tf.constant(parts.labels)).graph
    products = [op for op in graph.get_operations() if op.type == "MatMul" and "gradient" not in op.name]
    first, second = ({op.name for op in _before(product) if "gradient" in op.name} for product in products[::2])
    assert not first
    assert any("MatMul" in name for name in second)


def optimized(training):
    """The nodes of the graphs of a step as Grappler left them."""
    context.export_run_metadata()
    training.run(steps=1, watched=())
    graphs = context.export_run_metadata().function_graphs
    return [node for graph in graphs for node in graph.post_optimization_graph.node]


def test_o1_adds_up_gradients_and_steps_in_float32():
    nodes = optimized(Accumulating(Amp(level="o1"), dense_network, optimizer=lambda: keras.optimizers.Adadelta(1.0)))
    assert {dtype_of(node) for node in nodes if base(node.op) == "MatMul"} == {"bfloat16"}
    arithmetic = {dtype_of(node) for node in nodes if node.op in ("AddV2", "Mul", "RealDiv", "Rsqrt", "Sqrt", "Square")}
    assert "float32" in arithmetic
    assert "bfloat16" not in arithmetic


@pytest.mark.parametrize(
    ("kept", "rounding"), [(tf.float32, "float32"), (tf.float16, "tf32"), (tf.bfloat16, "bfloat16")]
)
@pytest.mark.parametrize(("device", "size"), [("cpu", 128), ("cuda", 1024)])
def test_the_float32_probe_is_large_enough_for_a_gpus_matrix_units(device, size, kept, rounding, monkeypatch):
    """float16 keeps the 10 bits of TF32."""
    sizes = set()

    def multiply(left, right):
        sizes.update((*left.shape, *right.shape))
        return tf.cast(tf.cast(left, kept), tf.float32) @ right

    monkeypatch.setattr(float32_probe, "_PRODUCTS", {"matmul": multiply})
    assert (float32_probe.arithmetic(device), sizes) == ({"matmul": rounding}, {size})


class FromDataSet(Training):
    """Batches are taken in the step from a data set that lies in memory, and the model has a single variable."""

    def __init__(self, amp):
        model = [keras.Input((64,)), layers.Dense(10, use_bias=False)]
        super().__init__(amp, lambda: keras.Sequential(model), optimizer=lambda: keras.optimizers.RMSprop(0.01))
        self.data = tf.constant(numpy.random.Generator(numpy.random.Philox(2)).random((500, 64), numpy.float32))

    def step(self, images, labels):
        with self.precision:
            logits = self.model(tf.gather(self.data, labels), training=True)
            loss = -tf.reduce_mean(tf.nn.log_softmax(logits))
        self.precision.backward(loss)
        self.precision.step(self.optimizer)
        return loss


MOVED = ("GatherV2", "LogSoftmax", "Square")


@pytest.mark.parametrize(("allow", "dtype"), [((), "float32"), (MOVED, "bfloat16")])
def test_o1_takes_batches_and_has_loss_and_step_in_float32_unless_they_are_allowed(allow, dtype):
    dtypes = {node.op: dtype_of(node) for node in optimized(FromDataSet(Amp(level="o1", allow=allow)))}
    assert {name: dtypes[name] for name in (*MOVED, "MatMul")} == {**dict.fromkeys(MOVED, dtype), "MatMul": "bfloat16"}


def test_an_operation_that_gathers_may_be_on_the_lists():
    assert FromDataSet(Amp(level="o1", allow=("GatherV2",))).run(steps=1, watched=(1,))["verdict"] == "proved"


def _before(operation):
    """Everything that has to be done before an operation."""
    done, todo = set(), [operation]
    while todo:
        operation = todo.pop()
        if operation not in done:
            done.add(operation)
            todo += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return done


EMBEDDED = [
    ("o0", "auto", LossScale(), None),
    ("o1", "bfloat16", LossScale(mode="dynamic", init=8.0), 0.05),
    ("o2", "float16", LossScale(mode="dynamic", init=8.0), 0.05),
    ("o3", "bfloat16", LossScale(), 0.05),
]


@pytest.mark.parametrize(("level", "dtype", "scale", "clip"), EMBEDDED)
@pytest.mark.parametrize("make", [lambda: keras.optimizers.SGD(0.5), lambda: keras.optimizers.Adam(0.1)])
def test_an_embeddings_gradient_stays_sparse_and_steps_as_a_dense_one(monkeypatch, make, level, dtype, scale, clip):
    """Over two micro-batches, with rows that are looked up twice in one and again in the other."""

    def trained(dense):
        keras.utils.set_random_seed(0)
        precision = Precision(Amp(level=level, dtype=dtype), loss_scale=scale)
        optimizer, applied = make(), []
        apply = optimizer.apply
        optimizer.apply = lambda grads: applied.append(type(grads[0])) or apply(grads)
        model, optimizer = precision.prepare(
            lambda: keras.Sequential([keras.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Dense(4)]),
            optimizer,
        )
        if dense:
            received = precision._mechanism.received
            monkeypatch.setattr(precision._mechanism, "received", lambda gradients, dense: received(gradients, True))

        @tf.function(autograph=False)
        def step():
            for rows in ([[1, 2, 1]], [[2, 7, 2]]):
                with precision:
                    loss = tf.reduce_mean(model(tf.constant(rows)) ** 2) / 2
                precision.backward(loss)
            precision.step(optimizer, clip=clip)

        for _ in range(3):
            step()
        return applied[0], weights(model)

    (kind, sparse), (_, dense) = trained(False), trained(True)
    assert kind is tf.IndexedSlices
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if dtype == "auto" else {"rtol": 0.02, "atol": 0.01}
    for one, other in zip(sparse, dense, strict=True):
        assert numpy.allclose(one, other, **tolerance)


@pytest.mark.parametrize("scale", [LossScale(mode="none"), LossScale(mode="static", init=64.0)])
def test_clipping_sees_unscaled_gradients(scale):
    trained = Training(Amp(level="o1"), dense_network, scale=scale, clip=0.01)
    before = weights(trained.model)
    trained.run(steps=1, watched=())
    pairs = zip(weights(trained.model), before, strict=True)
    moved = numpy.sqrt(sum(((one - other) ** 2).sum() for one, other in pairs))
    assert moved == pytest.approx(0.01 * 0.01, rel=1e-3)  # the learning rate times the norm


def test_a_variable_that_the_loss_does_not_depend_on_stays():
    def make():
        inputs = keras.Input((2,))
        return keras.Model(inputs, [layers.Dense(1, name=name)(inputs) for name in ("used", "unused")])

    precision = Precision(Amp(level="o1"), loss_scale=LossScale(mode="dynamic", init=8.0))
    model, optimizer = precision.prepare(make, keras.optimizers.SGD(1.0))
    before = [model.get_layer(name).get_weights()[0] for name in ("used", "unused")]

    @tf.function(autograph=False)
    def step():
        with precision:
            loss = tf.reduce_sum(model(tf.ones((1, 2)))[0])
        precision.backward(loss)
        precision.step(optimizer, clip=5.0)

    step()
    used, unused = (model.get_layer(name).get_weights()[0] for name in ("used", "unused"))
    assert numpy.array_equal(unused, before[1])
    assert numpy.allclose(used, before[0] - 1.0)


def test_an_optimizer_that_takes_no_step_in_an_iteration_keeps_its_own_scale():
    scaler = make_scaler(LossScale(mode="dynamic", init=8.0, growth_every=2, per_optimizer=True))
    often, rarely = optimizers = [keras.optimizers.SGD() for _ in range(2)]
    for optimizer in optimizers:
        scaler.add(optimizer)

    @tf.function(autograph=False)
    def iterate(*stepped):
        for optimizer in stepped:
            scaler.of(optimizer).record(tf.constant(False))
        scaler.update()

    history = []
    for stepped in ((often, rarely), (often,), (often, rarely)):
        iterate(*stepped)
        history.append([scaler.of(optimizer).value for optimizer in optimizers])
    assert history == [[8.0, 8.0], [16.0, 8.0], [16.0, 16.0]]


def test_what_would_train_something_else_is_refused():
    precision = Precision("o2")
    with pytest.raises(RuntimeError, match="has no variables yet"):
        precision.prepare(lambda: keras.Sequential([layers.Dense(4)]))
    for optimizer in (
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
        keras.optimizers.SGD(loss_scale_factor=8.0),
    ):
        with pytest.raises(RuntimeError, match="scales the loss itself"):
            precision.prepare(dense_network, optimizer)


def test_the_private_method_of_keras_that_is_replaced_is_there():
    assert hasattr(keras.optimizers.SGD(), replicas.REDUCES)


def test_layers_that_were_made_before_their_policy_are_refused():
    early = layers.Dense(4, name="early")
    for level in ("o2", "o3"):
        with pytest.raises(
            RuntimeError, match=r"layer early has dtype policy float32, and amp=o\d gives it .*bfloat16"
        ):
            of(level).cast(lambda: keras.Sequential([keras.Input((8,)), early]))
