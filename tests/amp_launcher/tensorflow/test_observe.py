"""What is seen of a step in TensorFlow is what it computes; and what was sabotaged is never proved."""

from __future__ import annotations

from collections import Counter

import keras
import numpy
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.verdict import observed as judged
from amp_launcher.tensorflow.observe import shapes
from amp_launcher.tensorflow.precision import HalfPolicy, grappler
from tests.amp_launcher.tensorflow.observed_runs import BACKWARD, BATCH, FORWARD, Training, dense_network, network

LEVELS = [
    *(Amp(level=level) for level in ("o0", "o1", "o2", "o3")),
    *(Amp(level=level, dtype="float16") for level in ("o2", "o3")),
]


def work(report, backward: bool) -> Counter[str]:
    total: Counter[str] = Counter()
    for call in report["calls"]:
        if call["backward"] is backward:
            total[call["operation"]] += call["flops"]
    return total


@pytest.mark.parametrize("amp", LEVELS, ids=lambda amp: f"{amp.level}-{amp.dtype}")
def test_every_level_is_proved_with_all_work_counted_as_by_hand(amp):
    training = Training(amp)
    observed = training.run()
    assert observed["verdict"] == "proved", observed["why"]
    half = {"o0": "float32"}.get(amp.level, "bfloat16" if amp.dtype == "auto" else amp.dtype)
    assert observed["dtype"] == half
    assert observed["half_flop_share"] == (0.0 if amp.level == "o0" else 1.0)
    assert list(observed["param_dtypes"]) == [half if amp.level == "o3" else "float32"]
    for report in training.observer.reports:
        assert work(report, backward=False) == FORWARD
        assert work(report, backward=True) == BACKWARD


def test_steps_that_are_watched_compute_what_they_would_have_unwatched():
    ends = []
    for watched in ((), (1, 2, 3)):
        training = Training(Amp(level="o1"))
        training.run(watched=watched)
        ends.append([variable.numpy() for variable in training.model.variables])
    assert all(numpy.array_equal(one, other) for one, other in zip(*ends, strict=True))


def test_operations_and_layers_kept_in_float32_are_told_from_the_others():
    observed = Training(Amp(level="o1", deny=("MatMul",))).run()
    assert observed["verdict"] == "proved", observed["why"]
    assert "kept in float32 as requested: MatMul in float32" in observed["why"]
    training = Training(Amp(level="o2", keep_fp32=("conv1", "head")))
    observed = training.run()
    assert observed["verdict"] == "proved", observed["why"]
    kept = {(call["operation"], call["dtype"]) for call in training.observer.reports[0]["calls"] if call["kept"]}
    assert kept == {(operation, "float32") for operation in ("Conv2D", "Conv2DBackpropFilter", "MatMul")}


@pytest.mark.parametrize("entry", ["deny=[BatchMatMul]", "allow=[Softmax]"])
def test_an_entry_that_stands_in_no_graph_is_unknown(entry):
    key, _, name = entry[:-1].partition("=[")
    observed = Training(Amp(level="o1", **{key: (name,)}), dense_network).run()
    assert observed["verdict"] == "unknown"
    assert f"amp.{entry} matched nothing" in observed["why"]


def test_a_layer_kept_in_float32_that_only_evaluation_runs_is_a_match_there():
    def make():
        inputs = keras.Input((12, 12, 1))
        flat = layers.Flatten()(inputs)
        second = layers.Dense(10, name="two", trainable=False)
        return keras.Model(inputs, [layers.Dense(10, name="one")(flat), second(flat)])

    class OneHead(Training):
        def forward(self, images):
            return self.model.get_layer("one")(tf.reshape(images, [BATCH, -1]))

    training = OneHead(Amp(level="o2", keep_fp32=("two",)), make)
    observed = training.run()
    assert observed["verdict"] == "unknown"
    assert "amp.keep_fp32=[two] matched nothing" in observed["why"]
    with training.observer.step(3, evaluation=True):
        tf.function(training.model, autograph=False)(tf.constant(training.images))
    observed = judged(training.observer.reports, (1, 3))
    assert observed["verdict"] == "proved", observed["why"]


class Pretending(layers.Dense):
    """In half precision around a product in float32."""

    def call(self, inputs, training=None):
        kernel = tf.cast(tf.convert_to_tensor(self.kernel), tf.float32)
        return tf.cast(tf.matmul(tf.cast(inputs, tf.float32), kernel), inputs.dtype)


@tf.custom_gradient
def float32_backward(left, right):
    def gradient(upstream):
        upstream, one, other = (tf.cast(tensor, tf.float32) for tensor in (upstream, left, right))
        return (
            tf.cast(tf.matmul(upstream, other, transpose_b=True), left.dtype),
            tf.cast(tf.matmul(one, upstream, transpose_a=True), right.dtype),
        )

    return tf.matmul(left, right), gradient


class HalfForward(layers.Dense):
    def call(self, inputs, training=None):
        return float32_backward(inputs, tf.convert_to_tensor(self.kernel))


class InPython(layers.Layer):
    def call(self, inputs):
        product = tf.numpy_function(lambda array: array @ array.T, [tf.cast(inputs, tf.float32)], tf.float32)
        return inputs + tf.cast(tf.reduce_mean(product), inputs.dtype) * 0


class Looped(layers.Layer):
    def call(self, inputs):
        given = tf.cast(inputs, tf.float32)
        square = tf.eye(144) + tf.reduce_mean(given)
        return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ square), (0, given), name="power")[1]


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (lambda: [Pretending(256, use_bias=False), Pretending(10, use_bias=False)], "contradicted"),
        (lambda: [HalfForward(256, use_bias=False), HalfForward(10, use_bias=False)], "contradicted"),
        (lambda: [InPython(), layers.Dense(10)], "unknown"),
        (lambda: [Looped(), layers.Dense(10)], "unknown"),
    ],
    ids=["round trips around float32", "backward in float32", "products of Python", "products in a float32 loop"],
)
def test_a_layer_that_computes_otherwise_is_never_proved(make, verdict):
    training = Training(
        Amp(level="o2"), lambda: keras.Sequential([keras.Input((12, 12, 1)), layers.Flatten(), *make()])
    )
    assert training.run()["verdict"] == verdict


O1, DENY = Amp(level="o1"), Amp(level="o1", deny=("MatMul",))


def forget_the_lists(training, patch):
    for name in grappler.variables({"deny": ["MatMul"]}):
        patch.delenv(name)


def raise_error(graph, wanted, batch=None):
    raise ValueError("no such operation")


@pytest.mark.parametrize(
    ("amp", "spoil", "verdict", "why"),
    [
        (O1, lambda training, patch: grappler.switch_off(), "contradicted", ""),
        # An operation that is on two lists: the pass gives up, with a line in its log.
        (
            *(DENY, lambda training, patch: patch.delenv(f"{grappler.PREFIX}_ALLOWLIST_REMOVE")),
            *("contradicted", ""),
        ),
        (DENY, forget_the_lists, "contradicted", "MatMul is on amp.deny"),
        (Amp(level="o0"), lambda training, patch: grappler.switch_on("bfloat16", {}), "contradicted", ""),
        (
            *(Amp(level="o2"), lambda training, patch: setattr(training.model.layers[1], "dtype_policy", "float32")),
            *("contradicted", ""),
        ),
        (O1, lambda training, patch: patch.setattr(shapes, "infer", raise_error), "unknown", "no such operation"),
    ],
    ids=[
        *("no rewrite", "lists that TensorFlow drops", "a denied operation in half", "half at o0"),
        "a layer of another dtype",
        "shapes that cannot be inferred",
    ],
)
def test_a_step_that_was_sabotaged_is_never_proved(monkeypatch, amp, spoil, verdict, why):
    training = Training(amp, network if amp.deny else dense_network)
    spoil(training, monkeypatch)
    observed = training.run()
    assert (observed["verdict"], why in observed["why"]) == (verdict, True), observed["why"]


@pytest.mark.parametrize("level", ["o0", "o2"])
def test_a_step_outside_of_a_graph_is_proved_with_the_work_of_the_same_graph(level):
    in_graphs, outside = Training(Amp(level=level)), Training(Amp(level=level))
    outside.execute = outside.step
    verdicts = [training.run() for training in (in_graphs, outside)]
    assert [observed["verdict"] for observed in verdicts] == ["proved", "proved"], verdicts
    works: list[dict[bool, int]] = [{False: 0, True: 0}, {False: 0, True: 0}]
    for work, training in zip(works, (in_graphs, outside), strict=True):
        for call in training.observer.reports[0]["calls"]:
            work[call["backward"]] += call["flops"]
    assert works[0][False] == works[1][False]
    assert works[0][True] <= works[1][True], "no graph leaves out the gradient of the images, which nothing needs"


def test_functions_that_are_made_to_run_eagerly_are_refused_at_o1():
    training = Training(O1)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(RuntimeError, match="o1 rewrites graphs, and here is none"):
            training.run()
    finally:
        tf.config.run_functions_eagerly(False)


def test_o3_asked_and_o2_run_is_contradicted(monkeypatch):
    monkeypatch.setattr(HalfPolicy, "policy", "mixed_bfloat16")
    assert Training(Amp(level="o3"), dense_network).run()["verdict"] == "contradicted"


def test_a_graph_that_was_made_before_anyone_watched_is_unknown():
    training = Training(O1, dense_network)
    observed = training.run(steps=2, watched=(2,))
    assert observed["verdict"] == "unknown"
    assert "its graph was made before it was observed" in observed["why"]


def test_a_graph_that_is_traced_again_is_looked_at_again():
    training = Training(O1, dense_network)
    training.run(steps=1, watched=(1,))
    grappler.switch_off()
    training.images, training.labels = training.images[:2], training.labels[:2]
    observed = training.run(steps=1, watched=(1,))
    assert observed["verdict"] == "contradicted"


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (context, "enable_graph_collection"),
        (context, "export_run_metadata"),
        (context.Context, "has_function"),
        (op_callbacks, "add_op_callback"),
        (op_callbacks, "remove_op_callback"),
    ],
)
def test_without_one_of_tensorflows_private_names_training_goes_on_and_is_unknown(monkeypatch, owner, name):
    monkeypatch.delattr(owner, name)
    observed = Training(O1, dense_network).run()
    monkeypatch.undo()
    op_callbacks.clear_op_callbacks()
    assert (observed["verdict"], name in observed["why"]) == ("unknown", True), observed["why"]


def test_what_a_step_itself_raises_is_not_taken_for_a_failure_to_observe():
    training = Training(O1, dense_network)
    with pytest.raises(ZeroDivisionError), training.observer.step(1):
        raise ZeroDivisionError
    assert training.observer.reports == []
    assert training.run()["verdict"] == "proved"


def test_products_of_rows_of_a_variable_are_counted():
    """As an embedding of tf_keras takes them."""

    class Embedding(Training):
        def forward(self, images):
            return self.model(tf.gather(self.rows, tf.zeros(BATCH, tf.int32)))

    training = Embedding(Amp(level="o0"), lambda: keras.Sequential([keras.Input((32,)), layers.Dense(10)]))
    training.rows = tf.Variable(tf.ones((50, 32)))
    assert training.run()["verdict"] == "proved"
    assert work(training.observer.reports[0], backward=False) == {"MatMul": 2 * BATCH * 32 * 10}


def test_the_steps_of_a_scale_that_skips_are_seen_like_others():
    training = Training(Amp(level="o2", dtype="float16"), dense_network, scale=LossScale(init=2.0**40))
    assert training.run()["verdict"] == "proved"
    assert training.precision.skipped_total == 3
