"""Steps of a user's script in TensorFlow: what is counted, and what metrics.jsonl and the result say of it."""

from __future__ import annotations

import json
import sys

import pytest

from recipes import metrics
from recipes.tensorflow_.script import TensorFlowWrapper
from recipes.trainer import script as shared

HEAD = """\
import keras
import numpy
import tensorflow as tf
inputs = numpy.random.rand(64, 32).astype("float32")
targets = inputs.sum(1, keepdims=True)
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16), keras.layers.Dense(1)])
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs a script under the wrapper in this process: its result, and its rows."""

    def start(text, *words, attempt=1):
        file, folder = tmp_path / "train.py", tmp_path / "run"
        file.write_text(HEAD + text)
        (folder / "attempts" / str(attempt)).mkdir(parents=True)
        monkeypatch.setenv("LAUNCHER_ATTEMPT", str(attempt))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        words = [*(words or ("amp=o0",)), f"script={file}", f"run={folder}", "device=cpu", "require_proof=false"]
        code = shared.main("tensorflow", words, TensorFlowWrapper)
        assert code == 0, capfd.readouterr()
        return json.loads((folder / "result.json").read_text()), list(metrics.read(folder / "metrics.jsonl"))

    return start


def steps(rows, key="step"):
    return [row[key] for row in rows if "event" not in row]


def test_each_step_of_fit_has_a_row_with_its_time_and_keras_s_loss(run):
    result, rows = run(
        """
net.compile(optimizer="adam", loss="mse", metrics=["accuracy"])
net.fit(inputs, targets, validation_data=(inputs, targets), batch_size=8, epochs=3, verbose=0)
"""
    )
    assert steps(rows) == list(range(1, 25))
    assert None not in steps(rows, "seconds")[1:] and None not in steps(rows, "loss")
    assert (result["throughput"]["unit"], result["throughput"]["counted"]) == ("steps/s", "Adam")
    assert (result["steps"], result["updates"]) == (24, {"attempted": 24, "applied": 24})
    assert result["loss"] == {"first": steps(rows, "loss")[0], "last": steps(rows, "loss")[-1]}
    assert [row["step"] for row in rows if row.get("event") == "eval"] == [8, 16, 24]
    assert set(result["eval"]) == {"accuracy", "loss"}


def test_steps_of_one_execution_share_its_time(run):
    result, rows = run(
        """
net.compile(optimizer="sgd", loss="mse", steps_per_execution=4)
net.fit(inputs, targets, batch_size=8, epochs=6, verbose=0)
"""
    )
    assert result["steps"] == 48
    seconds = steps(rows, "seconds")
    assert all(len(set(seconds[at : at + 4])) == 1 for at in range(0, 48, 4))


@pytest.mark.parametrize("decorated", ["@tf.function", ""], ids=["graph", "eager"])
def test_steps_of_a_loop_are_counted_without_its_evaluations(run, decorated):
    result, rows = run(
        f"""
optimizer = keras.optimizers.SGD(0.01)

{decorated}
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

@tf.function
def evaluate(x):
    return net(x)

for _ in range(12):
    step(inputs, targets)
    evaluate(inputs)
"""
    )
    assert (result["steps"], steps(rows)) == (12, list(range(1, 13)))


def test_the_steps_of_a_restored_optimizer_are_not_counted_again(run):
    result, _ = run(
        """
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(net.trainable_variables)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables))

step(inputs, targets)
optimizer.iterations.assign(500)
for _ in range(4):
    step(inputs, targets)
"""
    )
    assert result["steps"] == 5


def test_of_two_networks_optimizers_the_first_is_counted(run):
    result, _ = run(
        """
first, second = keras.optimizers.Adam(), keras.optimizers.SGD()
critic = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])

@tf.function
def step(x, y):
    for optimizer, part in ((first, net), (second, critic)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((part(x) - y) ** 2)
        optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)

for _ in range(9):
    step(inputs, targets)
"""
    )
    assert result["steps"] == 9
    assert result["throughput"]["counted"] == "Adam, the first of 2 optimizers"


def test_a_resumed_fit_continues_the_step_numbers(run):
    text = """
net.compile(optimizer="adam", loss="mse")
net.fit(inputs, targets, batch_size=8, verbose=0)
"""
    run(text)
    result, rows = run(text, attempt=2)
    assert (result["steps"], steps(rows)) == (16, list(range(1, 17)))


def test_tf_keras_fit_is_counted_by_its_own_optimizer(run):
    pytest.importorskip("tf_keras")
    result, rows = run(
        """
import tf_keras
model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(32,))])
model.compile(optimizer="sgd", loss="mse")
model.fit(inputs, targets, batch_size=8, epochs=2, verbose=0)
"""
    )
    assert (result["steps"], len(steps(rows))) == (16, 16)
    assert result["throughput"]["counted"] == "an optimizer"


def test_steps_that_keras_skips_are_attempted_and_not_applied(run):
    result, rows = run(
        """
keras.config.set_dtype_policy("mixed_float16")
inner = keras.optimizers.SGD(1e-3)
optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**15)
weight = keras.Variable(tf.ones((4,)))

@tf.function
def step(gradient):
    optimizer.apply([gradient * optimizer.dynamic_scale], [weight])

optimizer.build([weight])
for number in range(8):
    step(tf.fill((4,), float("inf") if number in (2, 3) else 1.0))
""",
        "amp=o0",
    )
    assert result["updates"] == {"attempted": 8, "applied": 6}
    assert steps(rows, "skipped") == [number in (2, 3) for number in range(8)]
    assert steps(rows, "loss_scale") == [2.0**15] * 3 + [2.0**14] + [2.0**13] * 4
    assert result["throughput"]["counted"] == "SGD"
