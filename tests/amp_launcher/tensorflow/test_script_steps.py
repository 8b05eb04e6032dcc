"""Steps of a user's script in TensorFlow: what is counted, and what metrics.jsonl and the result say of it.

Those of Keras's `fit` have their losses in `around/test_keras_callback.py`.
"""

from __future__ import annotations

import pytest

from tests.amp_launcher.torch.trainers import steps
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script
HEAD = """\
import keras
import numpy
import tensorflow as tf
inputs = numpy.random.rand(64, 32).astype("float32")
targets = inputs.sum(1, keepdims=True)
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16), keras.layers.Dense(1)])

def step_of(optimizer, net=net):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(inputs) - targets) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
"""
LOOP = """
optimizer = keras.optimizers.SGD(0.01)
step, evaluate = tf.function(lambda: step_of(optimizer)), tf.function(net)
for _ in range(12):
    step()
    evaluate(inputs)
"""
RESTORED = """
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(net.trainable_variables)
step = tf.function(lambda: step_of(optimizer))
step()
optimizer.iterations.assign(500)
for _ in range(4):
    step()
"""
TWO = """
first, second = keras.optimizers.Adam(), keras.optimizers.SGD()
critic = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])
step = tf.function(lambda: (step_of(first), step_of(second, critic)))
for _ in range(9):
    step()
"""
TF_KERAS_FIT = """
import tf_keras
model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(32,))])
model.compile(optimizer="sgd", loss="mse")
model.fit(inputs, targets, batch_size=8, epochs=2, verbose=0)
"""
OTHERS = """
import tf_keras

class Own:
    def apply_gradients(self, pairs):
        for gradient, weight in pairs:
            weight.assign_sub(gradient)

weight, optimizer = tf.Variable(tf.ones((32, 16))), {optimizer}

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.matmul(inputs, weight) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

for _ in range(3):
    step()
"""


@pytest.fixture
def run(run_script, tmp_path):
    """Runs a script: its result, its rows of steps, and what it printed."""

    def start(text):
        code, printed, result = run_script("tensorflow", HEAD + text, "amp=o0", "require_proof=false")
        assert code == 0, printed
        return result, steps(tmp_path / "run"), printed.out

    return start


@pytest.mark.parametrize(
    ("text", "count", "optimizer"),
    [
        (LOOP, 12, "SGD"),
        (LOOP.replace("tf.function(lambda: step_of(optimizer))", "lambda: step_of(optimizer)"), 12, "SGD"),
        (RESTORED, 5, "SGD"),
        (LOOP.replace("0.01", "0.01, gradient_accumulation_steps=3"), 4, "SGD"),
        (TWO, 9, "Adam, the first of 2 optimizers"),
        (TF_KERAS_FIT, 16, "an optimizer"),
        (OTHERS.format(optimizer="tf_keras.optimizers.SGD()"), 3, "an optimizer"),
        (OTHERS.format(optimizer="tf_keras.optimizers.legacy.SGD()"), 3, "an optimizer"),
    ],
    ids=["graph", "eager", "restored", "accumulated", "two", "fit of tf_keras", "tf_keras", "legacy"],
)
def test_steps_are_those_of_the_first_optimizer_by_its_own_count(run, text, count, optimizer):
    """Not executions, of which some evaluate; and a restored count begins where it is."""
    if "tf_keras" in text:
        pytest.importorskip("tf_keras")
    result, counted, _ = run(text)
    assert (result["steps"], result["updates"]) == (count, {"attempted": count, "applied": count})
    assert [row["step"] for row in counted] == list(range(1, count + 1))
    assert result["throughput"]["counted"] == optimizer


def test_where_no_optimizer_counts_its_steps_they_are_not_called_none(run):
    pytest.importorskip("tf_keras")
    result, _, printed = run(OTHERS.format(optimizer="Own()"))
    assert (result["steps"], result["updates"]) == (None, {"attempted": None, "applied": None})
    assert "steps/s not known: nothing that counts" in printed


def test_steps_of_one_execution_share_its_time(run):
    result, counted, _ = run(
        """
net.compile(optimizer="sgd", loss="mse", steps_per_execution=4)
net.fit(inputs, targets, batch_size=8, epochs=6, verbose=0)
"""
    )
    assert result["steps"] == 48
    assert all(len({row["seconds"] for row in counted[first : first + 4]}) == 1 for first in range(0, 48, 4))


def test_steps_that_keras_skips_are_attempted_and_not_applied(run):
    result, counted, _ = run(
        """
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=2.0**15)
weight = keras.Variable(tf.ones((4,)))

@tf.function
def step(gradient):
    optimizer.apply([gradient * optimizer.dynamic_scale], [weight])

optimizer.build([weight])
for number in range(8):
    step(tf.fill((4,), float("inf") if number in (2, 3) else 1.0))
"""
    )
    assert result["updates"] == {"attempted": 8, "applied": 6}
    assert [row["skipped"] for row in counted] == [number in (2, 3) for number in range(8)]
    assert [row["loss_scale"] for row in counted] == [2.0**15] * 3 + [2.0**14] + [2.0**13] * 4
    assert result["throughput"]["counted"] == "SGD"
