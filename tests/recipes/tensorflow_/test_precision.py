"""What each level does to a training step in TensorFlow, beside the plain thing written out."""

from __future__ import annotations

import json
from dataclasses import replace

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context

from recipes.precision.levels import Amp, LossScale
from recipes.tensorflow_.observe.graphs import dtype_of
from recipes.tensorflow_.observe.products import base
from recipes.tensorflow_.precision import Precision, replicas
from recipes.typed import SettingsError
from tests.recipes import forking
from tests.recipes.tensorflow_.observed_runs import Training, network

HALF = [(level, dtype) for level in ("o2", "o3") for dtype in ("float16", "bfloat16")]


def of(level, dtype="auto", scale=None, **amp):
    return Precision.of(Amp(level=level, dtype=dtype, **amp), scale or LossScale(), "cpu")


def weights(training):
    return [numpy.array(each.numpy(), numpy.float32) for each in training.model.trainable_variables]


def same(one, other):
    return all(numpy.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("on", [False, True])
def test_tf32_which_tensorflow_has_on_is_switched_as_resolved(on):
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(not on)
    Precision.apply(replace(of("o0").resolved, tf32=on))
    assert tf.config.experimental.tensor_float_32_execution_enabled() is on
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.parametrize(("level", "dtype"), HALF)
def test_layers_compute_in_half_precision_and_only_o3s_variables_are(level, dtype):
    training = Training(Amp(level=level, dtype=dtype))
    dense = training.model.get_layer("dense")
    assert dense.compute_dtype == dtype
    assert dense.kernel.dtype == (dtype if level == "o3" else "float32")
    assert keras.config.dtype_policy().name == "float32"


def test_o0_is_a_plain_loop_bit_for_bit():
    ours = Training(Amp(level="o0"))
    ours.run(watched=())
    keras.utils.set_random_seed(0)
    model, optimizer = network(), keras.optimizers.SGD(0.01)

    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [each.value for each in variables]), variables)

    for _ in range(3):
        step(tf.constant(ours.images), tf.constant(ours.labels))
    assert same(weights(ours), [each.numpy() for each in model.trainable_variables])


def test_o2_is_keras_own_mixed_policy_with_its_own_loss_scale_to_float32_rounding():
    ours = Training(Amp(level="o2", dtype="float16"), scale=LossScale(mode="dynamic", init=2.0**15))
    ours.run(watched=())
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**15)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), tf.float32)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            scaled = optimizer.scale_loss(loss)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(scaled, [each.value for each in variables]), variables)

    for _ in range(3):
        step(tf.constant(ours.images), tf.constant(ours.labels))
    theirs = [each.numpy() for each in model.trainable_variables]
    assert all(numpy.allclose(one, other, rtol=1e-6) for one, other in zip(weights(ours), theirs, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_o3_loses_small_updates_and_o2_does_not(dtype):
    """What is less than half of a weight's last bit, a half-precision weight doesn't take."""
    moved = {}
    for level in ("o0", "o2", "o3"):
        amp = Amp(level=level) if level == "o0" else Amp(level=level, dtype=dtype)
        training = Training(amp, scale=LossScale(), optimizer=lambda: keras.optimizers.SGD(1e-6))
        before = weights(training)
        training.run(steps=5, watched=())
        changed = [one != other for one, other in zip(weights(training), before, strict=True)]
        moved[level] = sum(each.sum() for each in changed) / sum(each.size for each in changed)
    assert moved["o2"] > 0.9 * moved["o0"]
    assert moved["o3"] < 0.3 * moved["o0"]


class Accumulating(Training):
    """The same step from two micro-batches of half the size."""

    def step(self, images, labels):
        gradients, total = None, tf.zeros(())
        for some, named in zip(tf.split(images, 2), tf.split(labels, 2), strict=True):
            with self.precision.forward(after=gradients) as tape:
                logits = tf.cast(self.forward(some), tf.float32)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(named, logits)) / 2
            gradients = self.precision.backward(tape, loss, self.optimizer, gradients)
            total += loss
        self.outcome = self.precision.step(self.optimizer, gradients, clip=self.clip)
        self.precision.update()
        return total


def dense():
    return keras.Sequential([keras.Input((12, 12, 1)), layers.Flatten(), layers.Dense(32), layers.Dense(10)])


def test_a_micro_batch_begins_when_the_one_before_it_is_done():
    parts = Accumulating(Amp(level="o0"), dense)
    graph = parts.execute.get_concrete_function(tf.constant(parts.images), tf.constant(parts.labels)).graph
    products = [each for each in graph.get_operations() if each.type == "MatMul" and "gradient" not in each.name]
    first, second = ({each.name for each in _before(product) if "gradient" in each.name} for product in products[::2])
    assert not first
    assert any("MatMul" in each for each in second)


def test_o1_adds_up_gradients_and_steps_in_float32():
    training = Accumulating(Amp(level="o1"), dense, optimizer=lambda: keras.optimizers.Adadelta(1.0))
    context.export_run_metadata()
    training.run(steps=1, watched=())
    graphs = [each.post_optimization_graph for each in context.export_run_metadata().function_graphs]
    nodes = [node for graph in graphs for node in graph.node]
    assert {dtype_of(node) for node in nodes if base(node.op) == "MatMul"} == {"bfloat16"}
    arithmetic = {dtype_of(node) for node in nodes if node.op in ("AddV2", "Mul", "RealDiv", "Rsqrt", "Sqrt", "Square")}
    assert "float32" in arithmetic
    assert "bfloat16" not in arithmetic


class FromDataSet(Training):
    """Batches are taken in the step from a data set that lies in memory, and the model has a single variable."""

    def __init__(self, amp):
        super().__init__(amp, lambda: keras.Sequential([keras.Input((64,)), layers.Dense(10, use_bias=False)]))
        self.data = tf.constant(numpy.random.Generator(numpy.random.Philox(2)).random((500, 64), numpy.float32))

    def step(self, images, labels):
        with self.precision.forward() as tape:
            found = self.model(self.precision.input(tf.gather(self.data, labels)), training=True)
            loss = -tf.reduce_mean(tf.nn.log_softmax(self.precision.output(found)))
        gradients = self.precision.backward(tape, loss, self.optimizer)
        self.precision.step(self.optimizer, [tf.square(each) for each in gradients])
        self.precision.update()
        return loss


MOVED = ("GatherV2", "LogSoftmax", "Square")


@pytest.mark.parametrize(("allow", "dtype"), [((), "float32"), (MOVED, "bfloat16")])
def test_o1_takes_batches_and_has_loss_and_step_in_float32_unless_they_are_allowed(allow, dtype):
    training = FromDataSet(Amp(level="o1", allow=allow))
    context.export_run_metadata()
    training.run(steps=1, watched=())
    graphs = [each.post_optimization_graph for each in context.export_run_metadata().function_graphs]
    found = {node.op: dtype_of(node) for graph in graphs for node in graph.node}
    assert {name: found[name] for name in (*MOVED, "MatMul")} == {**dict.fromkeys(MOVED, dtype), "MatMul": "bfloat16"}


def test_an_operation_that_gathers_may_be_on_the_lists():
    assert FromDataSet(Amp(level="o1", allow=("GatherV2",))).run(steps=1, watched=(1,))["verdict"] == "proved"


def _before(operation):
    """Everything that has to be done before an operation."""
    found, todo = set(), [operation]
    while todo:
        each = todo.pop()
        if each not in found:
            found.add(each)
            todo += [*(given.op for given in each.inputs), *each.control_inputs]
    return found


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
        precision = of(level, dtype, scale)
        model = precision.cast(
            lambda: keras.Sequential([keras.Input((3,), dtype="int32"), layers.Embedding(50, 8), layers.Dense(4)])
        )
        optimizer = precision.optimizer(model, make())
        applied, apply = [], optimizer.apply
        monkeypatch.setattr(optimizer, "apply", lambda found: applied.append(type(found[0])) or apply(found))

        @tf.function(autograph=False)
        def step():
            gradients = None
            for rows in ([[1, 2, 1]], [[2, 7, 2]]):
                with precision.forward(after=gradients) as tape:
                    loss = tf.reduce_mean(precision.output(model(tf.constant(rows))) ** 2) / 2
                gradients = precision.backward(tape, loss, optimizer, gradients)
                if dense:
                    gradients = [tf.convert_to_tensor(each) for each in gradients]
            precision.step(optimizer, gradients, clip=clip)
            precision.update()

        for _ in range(3):
            step()
        return applied[0], [numpy.array(each.numpy(), numpy.float32) for each in model.trainable_variables]

    (kind, sparse), (_, dense) = trained(False), trained(True)
    assert kind is tf.IndexedSlices
    for one, other in zip(sparse, dense, strict=True):
        assert numpy.allclose(
            one, other, rtol=0.02 if dtype != "auto" else 1e-6, atol=0.01 if dtype != "auto" else 1e-7
        )


@pytest.mark.parametrize("scale", [LossScale(mode="none"), LossScale(mode="static", init=64.0)])
def test_clipping_sees_unscaled_gradients(scale):
    trained = Training(Amp(level="o1"), dense, scale=scale, clip=0.01)
    before = weights(trained)
    trained.run(steps=1, watched=())
    moved = numpy.sqrt(sum(((one - other) ** 2).sum() for one, other in zip(weights(trained), before, strict=True)))
    assert moved == pytest.approx(0.01 * 0.01, rel=1e-3)  # the learning rate times the norm


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_step_that_overflows_is_skipped_not_counted_and_halves_the_scale(level):
    amp = Amp(level="o2", dtype="float16") if level == "o2" else Amp(level="o1")
    trained = Training(amp, dense, scale=LossScale(mode="dynamic", init=2.0**120))
    trained.images = trained.images * numpy.float32(1e30)  # float32 gradients overflow too
    before = weights(trained)
    trained.run(steps=2, watched=())
    assert same(weights(trained), before)
    assert trained.precision.scale == 2.0**118
    assert trained.precision.skipped_total == 2
    assert int(trained.optimizer.iterations.numpy()) == 0


def test_a_variable_that_the_loss_does_not_depend_on_stays():
    precision = of("o1", scale=LossScale(mode="dynamic", init=8.0))
    used, unused = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = precision.optimizer([used, unused], keras.optimizers.SGD(1.0))

    @tf.function(autograph=False)
    def step():
        with precision.forward() as tape:
            loss = tf.reduce_sum(used.value)
        precision.step(optimizer, precision.backward(tape, loss, optimizer), clip=5.0)

    step()
    assert (used.numpy()[0], unused.numpy()[0]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        (lambda: of("o2", allow=("Softmax",)), "only the graph rewrite of o1 has operation lists"),
        (lambda: of("o1", keep_fp32=("head",)), "only the Keras policy of o2 goes by layers"),
        (lambda: of("o2", master_weights=False), "always float32; say amp=o3"),
        (lambda: of("o1", deny=("Conv2d",)), "did you mean Conv2D?"),
        (lambda: Precision.of(Amp(level="o1"), LossScale(), "cpu", xla=True), "XLA bypasses the graph rewrite"),
        (lambda: Precision.of(Amp(level="o1"), LossScale(), "tpu"), "device=tpu is not one of cpu, cuda"),
        (lambda: of("o2", keep_fp32=("haed",)).cast(network), "did you mean head?"),
    ],
)
def test_what_cannot_be_had_is_refused(asked, complaint):
    with pytest.raises(SettingsError) as caught:
        asked()
    assert complaint in str(caught.value)


def test_what_would_train_something_else_is_refused():
    precision = of("o2")
    with pytest.raises(RuntimeError, match="has no variables yet"):
        precision.cast(lambda: keras.Sequential([layers.Dense(4)]))
    model = precision.cast(dense)
    with pytest.raises(RuntimeError, match="scales the loss itself"):
        precision.optimizer(model, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    with pytest.raises(RuntimeError, match="scales the loss itself"):
        precision.optimizer(model, keras.optimizers.SGD(loss_scale_factor=8.0))
    optimizer = keras.optimizers.SGD()
    with pytest.raises(RuntimeError, match=r"comes after precision\.optimizer"):
        precision.step(optimizer, [])
    with pytest.raises(RuntimeError, match="the loss is bfloat16 and must be float32"):
        precision.backward(tf.GradientTape(), tf.zeros((), tf.bfloat16), optimizer)


def test_the_private_method_of_keras_that_is_replaced_is_there():
    assert hasattr(keras.optimizers.SGD(), replicas.REDUCES)


def test_layers_that_were_made_before_their_policy_are_refused():
    early = layers.Dense(4, name="early")
    for level in ("o2", "o3"):
        with pytest.raises(
            RuntimeError, match=r"layer early has dtype policy float32, and amp=o\d gives it .*bfloat16"
        ):
            of(level).cast(lambda: keras.Sequential([keras.Input((8,)), early]))


def test_precision_model_and_optimizer_belong_into_one_strategys_scope():
    precision, strategy = of("o2"), tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        with pytest.raises(RuntimeError, match=r"cast.* under OneDeviceStrategy, .* under DefaultDistributionStrategy"):
            precision.cast(dense)
        inside = of("o2")
        model = inside.cast(dense)
    with pytest.raises(
        RuntimeError, match=r"precision\.optimizer\(\.\.\.\) runs under DefaultDistributionStrategy, but this"
    ):
        inside.optimizer(model, keras.optimizers.SGD())


@pytest.fixture(scope="module")
def on_replicas():
    """The same training on one device and on two, in a process where a CPU is two devices."""
    ended = forking.run("tests.recipes.tensorflow_.replica_runs")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["plain", "clipped", "scaled", "skipped", "sparse"])
def test_two_replicas_train_as_one_device_does_on_both_their_samples(on_replicas, case):
    (one, scale, skipped, steps), (two, *rest) = on_replicas["answers"][case]
    assert rest == [scale, skipped, steps]
    assert (skipped, steps) == ((4, 0) if case == "skipped" else (0, 4))
    for single, mirrored in zip(one, two, strict=True):
        assert numpy.allclose(
            single, mirrored, rtol=0.02 if case == "scaled" else 1e-5, atol=1e-3 if case == "scaled" else 1e-7
        )


def test_a_step_of_several_replicas_with_variables_of_no_strategy_is_refused(on_replicas):
    assert "a step runs under MirroredStrategy, but this precision was made under" in on_replicas["outside"]


def test_replicas_draw_dropout_of_their_own(on_replicas):
    first, second = on_replicas["drawn"]
    assert first != second
