"""The callback of Keras's `fit` in scripts that don't use the launcher, with both observed backends.

With torch a process can't be forked from one with TensorFlow's Keras, and takes seconds to start: one does for all.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.amp_launcher import forking
from tests.amp_launcher.forking import Forked, environment, run_as_main
from tests.amp_launcher.torch import trainers

# It isn't imported here: TensorFlow may not come before Paddle in one process.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras isn't installed")
forking.preload("amp_launcher.tensorflow.script")  # TensorFlow imports Keras, with TensorFlow as its backend

FIT = """
import os, pathlib, sys, time
import keras, numpy
at = int(os.environ.get("STOP_AT", 0))
batches = []
def ask(batch, logs):
    batches.append(batch)
    if len(batches) == at:
        (pathlib.Path(os.environ["LAUNCHER_SPEC"]).parent / "STOP").touch()
        time.sleep(1.1)  # it is looked for once a second
keras.utils.set_random_seed(0)
inputs = numpy.random.rand(64, 32).astype("float32")
targets = inputs.sum(1, keepdims=True)
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(16), keras.layers.Dense(1)])
net.compile(optimizer=keras.optimizers.Adam(), loss="mse", metrics=["mae"])
callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=ask)]
words = dict(batch_size=8, epochs=3, verbose=0, callbacks=callbacks, validation_data=(inputs, targets))
history = net.fit(inputs, targets, **words)
print("fitted", int(net.optimizer.iterations.numpy()), history.history["loss"][-1], flush=True)
print("weights", [numpy.asarray(keras.ops.convert_to_numpy(w)).sum() for w in net.weights])
"""
UNVALIDATED = FIT.replace(", validation_data=(inputs, targets)", "")
"""Without the graph of an evaluation, which takes as long as that of a step."""


class Ended:
    def __init__(self, folder, out):
        self.folder, self.out = folder, out
        self.result = trainers.result(folder)
        self.steps = trainers.steps(folder)
        self.evaluations = [row for row in trainers.rows(folder) if row.get("event") == "eval"]

    @property
    def fitted(self):
        """The steps and the last loss that the script printed of each `fit`."""
        return [line.split()[1:] for line in self.out.splitlines() if line.startswith("fitted")]


@pytest.fixture
def run(tmp_path):
    def start(text, backend="tensorflow", attempt=1, **environ):
        folder = tmp_path / "run"
        (folder / "attempts" / str(attempt)).mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps({"schema": 2, "settings": {"framework": backend}}))
        (tmp_path / "train.py").write_text(text)
        words = ["amp=o0", "require_proof=false", "device=cpu", f"script={tmp_path}/train.py", f"run={folder}"]
        environ |= {"LAUNCHER_SPEC": f"{folder}/plan.json", "LAUNCHER_ATTEMPT": str(attempt), "KERAS_BACKEND": backend}
        program, words = ("-m", f"amp_launcher.{backend}.script"), [*words, f"workdir={tmp_path}"]
        if backend == "tensorflow":
            ended = Forked(run_as_main, (program, words), environ=environment(**environ)).complete()
        else:  # not forked from a process that may have Keras with the other backend
            command = [sys.executable, *program, *words]
            ended = subprocess.run(command, env=environment(**environ), capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return Ended(folder, ended.stdout)

    return start


def test_fit_trains_as_alone_and_each_step_has_its_figures_and_each_epoch_its_held_out_loss(run, tmp_path):
    text = FIT.replace('["mae"]', '["mae", "accuracy"]')
    ended = run(text)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "train.py").write_text(text)
    program, environ = (str(alone / "train.py"),), environment(KERAS_BACKEND="tensorflow")
    plain = Forked(run_as_main, (program, ()), environ=environ, cwd=alone).complete()
    assert plain.returncode == 0 and plain.stdout.startswith("fitted"), plain.stderr
    assert plain.stdout in ended.out
    assert [row["step"] for row in ended.steps] == list(range(1, 25))
    losses = [row["loss"] for row in ended.steps]
    assert losses[-1] == pytest.approx(float(ended.fitted[0][1])) and len(set(losses)) == 24
    assert all(row["logged"]["mae"] > 0 for row in ended.steps)
    assert all(row["seconds"] is not None for row in ended.steps[1:])
    assert [row["step"] for row in ended.evaluations] == [8, 16, 24]
    assert (ended.result["steps"], set(ended.result["eval"])) == (24, {"accuracy", "loss"})
    assert ended.result["loss"] == {"first": losses[0], "last": losses[-1]}
    throughput = ended.result["throughput"]
    assert (throughput["unit"], throughput["counted"]) == ("steps/s", "Adam")


def test_a_fit_that_is_asked_to_stop_ends_after_that_batch_and_the_script_continues(run, tmp_path):
    names = "('each-{epoch}.weights.h5', 'last.weights.h5')"
    saving = f"keras.callbacks.ModelCheckpoint(name, save_weights_only=True) for name in {names}"
    ended = run(FIT.replace("history", f"callbacks += [{saving}]\nhistory", 1), STOP_AT="11")
    assert ended.fitted[0][0] == "11"
    assert (ended.result["status"], len(ended.steps)) == ("stopped", 11)
    each = tmp_path / "each-1.weights.h5"
    assert [*tmp_path.glob("each-*")] == [each], "one that was cut short is none that a file may be named by"
    assert (tmp_path / "last.weights.h5").read_bytes() != each.read_bytes()


def test_a_script_with_a_handler_that_a_callback_sets_is_stopped_by_that_alone(run):
    handler = """
import signal
def handle(logs):
    signal.signal(signal.SIGTERM, lambda *given: print("mine"))
callbacks.append(keras.callbacks.LambdaCallback(on_train_begin=handle))
history"""
    assert run(UNVALIDATED.replace("\nhistory", handler, 1), STOP_AT="3").fitted[0][0] == "24"


def test_a_backup_that_keras_deletes_at_the_end_of_fit_is_left_to_the_signal(run):
    backup = "callbacks.append(keras.callbacks.BackupAndRestore('backup'))\nhistory"
    assert run(UNVALIDATED.replace("history", backup, 1), STOP_AT="3").fitted[0][0] == "24"


def test_steps_go_on_in_a_second_fit_and_accumulated_batches_are_one(run):
    text = FIT.replace("Adam()", "Adam(gradient_accumulation_steps=4)")
    text = text.replace("history = ", "net.fit(inputs, targets, **words)\nhistory = ")
    ended = run(text)
    assert [row["step"] for row in ended.steps] == list(range(1, 13))
    assert [row["step"] for row in ended.evaluations] == [2, 4, 6, 8, 10, 12]


def test_a_script_that_resumes_has_its_own_numbers_of_steps(run):
    kept = 'callbacks.append(keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False))\nhistory'
    text = UNVALIDATED.replace("history", kept, 1)
    run(text.replace("epochs=3", "epochs=2"))
    first = run(text, attempt=2)
    assert first.fitted[0][0] == "24"
    assert [row["step"] for row in first.steps] == list(range(1, 25))


def test_steps_of_several_replicas_are_counted_once(run):
    two = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    net = """
    text = UNVALIDATED.replace("net = ", two, 1).replace("\nnet.compile", "\n    net.compile")
    ended = run(text)
    assert [row["step"] for row in ended.steps if row["loss"]] == list(range(1, 25))


def test_with_torch_callbacks_are_taken_in_each_way_and_the_last_of_three_fits_is_stopped(run):
    """The guest `keras_with_torch` tests that `fit` trains as alone."""
    ways = "None, callbacks[0], keras.callbacks.CallbackList(callbacks, add_history=True, model=net)"
    every = f"for way in ({ways}):\n    history = net.fit(inputs, targets, **{{**words, 'callbacks': way}})\n"
    text = FIT.replace("history = net.fit(inputs, targets, **words)\n", every).replace("verbose=0", "verbose=2")
    text = text.replace("Adam()", "Adam(gradient_accumulation_steps=2)")
    ended = run(f"import sys\nsys.modules['tensorflow'] = None  # Keras would import it\n{text}", "torch", STOP_AT="35")
    assert (ended.fitted[0][0], ended.result["status"]) == ("29", "stopped")
    assert [row["step"] for row in ended.steps if row["loss"] and row["logged"]["mae"]] == list(range(1, 30))
    assert [row["step"] for row in ended.evaluations] == [4, 8, 12, 16, 20, 24, 28, 29]
