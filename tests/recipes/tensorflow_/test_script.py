"""The wrapper around a user's script in TensorFlow, run in this process as a user's file is run."""

from __future__ import annotations

import functools
import json
import socket

import keras
import pytest

from recipes import script
from recipes.tensorflow_ import graph_rewrite
from recipes.tensorflow_.precision import grappler
from recipes.trainer import rendezvous
from tests.recipes import forking
from tests.recipes.wrapped_scripts import run_script

assert run_script

HEAD = """\
import keras
import numpy
import tensorflow as tf
keras.utils.set_random_seed(0)
inputs = numpy.random.rand(64, 32).astype("float32")
targets = inputs.sum(1, keepdims=True)
"""
NET = """
net = keras.Sequential(
    [keras.Input((32,)), keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.Dense(16)]
)
"""
FIT = (
    HEAD
    + NET
    + """
net.compile(optimizer="sgd", loss="mse")
net.fit(inputs, targets, batch_size=32, epochs=2, verbose=0)
"""
)
LOOP = (
    HEAD
    + NET
    + """
optimizer = keras.optimizers.SGD(0.01)

@tf.function
def step(x, y):
    with tape() as recorded:
        loss = tf.reduce_mean((tf.cast(net(x, training=True), tf.float32) - y) ** 2)
    optimizer.apply(recorded.gradient(loss, net.trainable_variables), net.trainable_variables)

for _ in range(3):
    step(inputs, targets)
"""
)

PAGE = """\
import numpy
import tensorflow as tf
import tf_keras
{get}
inputs = numpy.random.default_rng(0).random((64, 32), dtype="float32")
model = tf_keras.Sequential([tf_keras.layers.Dense(64, input_shape=(32,)), tf_keras.layers.Dense(1)])
opt = {enable}(tf_keras.optimizers.legacy.SGD(0.01))
model.compile(loss="mse", optimizer=opt)
model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=32, epochs=2, verbose=0)
"""
"""The example of the page of enable_mixed_precision_graph_rewrite, as TensorFlow 2 still runs it."""


@pytest.fixture
def run(run_script):
    yield functools.partial(run_script, "tensorflow")
    graph_rewrite.disable()


@pytest.mark.parametrize(
    ("level", "dtype", "mechanism"),
    [
        ("o0", "float32", "float32"),
        ("o1", "bfloat16", "grappler"),
        ("o2", "bfloat16", "keras_policy"),
        ("o2", "float16", "keras_policy"),
        ("o3", "bfloat16", "keras_policy"),
    ],
)
def test_a_script_that_knows_nothing_of_it_runs_at_the_level_and_is_proved(run, level, dtype, mechanism):
    words = [f"amp={level}", *([f"amp.dtype={dtype}"] if level != "o0" else [])]
    code, printed, result = run(FIT, *words)
    assert (code, result["mechanism"]) == (0, mechanism), result.get("reason") or printed.err
    assert (result["observed"]["verdict"], result["observed"]["dtype"]) == ("proved", dtype)
    assert result["steps"] in ((3, 4) if dtype == "float16" else (4,))  # the first scale may be too much
    assert keras.config.dtype_policy().name == "float32"


def test_what_keras_scales_is_said_with_its_own_rule(run):
    _, printed, _ = run(FIT, "amp=o2", "amp.dtype=float16")
    assert "dynamic loss scale from 32768" in printed.out
    code, printed, _ = run(FIT, "amp=o2", "amp.dtype=float16", "loss_scale=static")
    assert (code, "Keras scales the loss of this script by its own rule" in printed.err) == (2, True)


def test_float16_in_a_loop_of_the_scripts_own_is_refused_as_nothing_scales_its_loss(run):
    text = LOOP.replace("tape()", "tf.GradientTape()")
    code, printed, result = run(text, "amp=o2", "amp.dtype=float16")
    assert (code, result) == (2, {})
    assert "nothing in this script scales it" in printed.err
    assert "Precision.from_env()" in printed.err
    assert run(text, "amp=o2", "amp.dtype=bfloat16")[0] == 0


def test_a_loop_that_hides_from_the_reader_is_caught_while_it_runs(run, tmp_path):
    """The text has compile and fit, and trains with a tape that a helper makes."""
    (tmp_path / "taping_helper.py").write_text("import tensorflow as tf\ntape = tf.GradientTape\n")
    text = "from taping_helper import tape\n" + LOOP + "\nclass No:\n    def compile(self): pass\n    fit = compile\n"
    text += "No().compile()\nNo().fit()\n"
    code, _, result = run(text, "amp=o2", "amp.dtype=float16")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "nothing scaled the loss of optimizer SGD" in result["observed"]["why"]


def test_a_policy_that_the_script_sets_itself_is_held_against_the_level(run):
    own = FIT.replace("\nnet =", '\nkeras.config.set_dtype_policy("mixed_bfloat16")\nnet =', 1)
    code, _, result = run(own, "amp=o2", "train.precision=script")
    assert (code, result["mechanism"], result["observed"]["verdict"]) == (0, "script", "proved")
    assert run(FIT, "amp=o2", "train.precision=script")[2]["observed"]["verdict"] == "contradicted"
    assert run(own, "amp=o0", "train.precision=script")[2]["observed"]["verdict"] == "contradicted"


STEPWISE = """
import keras
class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("did step", flush=True)
"""


@pytest.mark.parametrize("end", ["", "\nexcept Exception as error:\n    print('swallowed', error)"])
def test_a_contradiction_ends_fit_after_its_second_step(run, end):
    text = STEPWISE + FIT.replace("verbose=0", "verbose=0, callbacks=[Tell()]").replace("epochs=2", "epochs=20")
    text = text.replace("net.fit", "try:\n    net.fit") + end if end else text
    code, printed, result = run(text, "amp=o2", "train.precision=script")
    assert (code, result["status"], result["observed"]["verdict"]) == (1, "failed", "contradicted")
    assert (result["steps"], printed.out.count("did step"), "swallowed" in printed.out) == (2, 1, False)
    assert result["reason"].startswith("what ran was not amp=o2: step 1: ")
    assert result["reason"].endswith("; so the script was ended")
    code, printed, result = run(text.replace("=20", "=2"), "amp=o2", "train.precision=script", "require_proof=false")
    assert (printed.out.count("did step"), result["observed"]["verdict"]) == (4, "contradicted")
    assert printed.err.count("script: warning: amp=o2 is not applied: ") == 1


def test_operations_judged_early_are_counted_once_at_the_end(run):
    """Two networks, the second of which is made after the first judgement."""
    second = FIT.removeprefix(HEAD).replace("net", "other").replace("Dense(64)", "Dense(640)")
    alone, both = run(FIT, "amp=o2")[2]["observed"], run(FIT + second, "amp=o2")[2]["observed"]
    assert (alone["verdict"], both["verdict"]) == ("proved", "proved"), both["why"]
    assert sum(both["param_dtypes"].values()) > 5 * sum(alone["param_dtypes"].values())
    mixed = FIT + "\nkeras.config.set_dtype_policy('float32')\n" + second
    code, _, result = run(mixed, "amp=o2")
    assert (code, result["observed"]["verdict"]) == (1, "contradicted")
    share = result["observed"]["half_flop_share"]
    assert 0.05 < share < 0.15, "a tenth of the work, which was observed before the first judgement"


def test_a_policy_that_the_script_takes_back_is_seen(run):
    text = FIT.replace("\nnet =", '\nkeras.config.set_dtype_policy("float32")\nnet =', 1)
    code, printed, result = run(text, "amp=o2")
    assert (code, result["observed"]["verdict"]) == (1, "contradicted")
    assert "script: what ran was not amp=o2; so the script was ended\n" in printed.err
    assert (printed.out + printed.err).count(result["observed"]["why"]) == 1


@pytest.mark.parametrize("level", ["o2", "o3"])
def test_a_last_layer_that_the_script_set_to_float32_is_its_own_choice(run, level):
    own = FIT.replace("keras.layers.Dense(16)]", 'keras.layers.Dense(16, dtype="float32")]')
    code, _, result = run(own, f"amp={level}", "amp.dtype=bfloat16")
    assert (code, result["observed"]["verdict"]) == (0, "proved"), result["reason"]
    assert "kept in float32 as requested: MatMul in float32" in result["observed"]["why"]
    assert result["observed"]["half_flop_share"] < 0.9


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_smaller_last_batch_and_several_steps_at_once_change_nothing_of_what_is_proved(run, level):
    """Of how many samples a graph is, is then unknown, and the steps are a loop of Keras's."""
    kept = FIT.replace("keras.layers.Dense(16)]", 'keras.layers.Dense(16, dtype="float32")]') if level == "o2" else FIT
    whole = run(kept, f"amp={level}", "amp.dtype=bfloat16")[2]["observed"]
    for text in (kept.replace("rand(64", "rand(70"), kept.replace('"mse")', '"mse", steps_per_execution=2)')):
        code, _, result = run(text, f"amp={level}", "amp.dtype=bfloat16")
        assert (code, result["observed"]["verdict"]) == (0, "proved"), result["reason"]
        assert result["observed"]["half_flop_share"] == whole["half_flop_share"]
        assert "rand(70" not in text or result["steps"] == 4 + 6  # of both attempts in this folder


def test_products_whose_share_depends_on_an_unknown_number_of_samples_are_not_counted(run):
    """What grows with its square, or not at all."""
    text = FIT.replace("rand(64", "rand(70").replace(
        'loss="mse"', "loss=lambda true, result: tf.reduce_mean(tf.matmul(result, result, transpose_b=True))"
    )
    code, _, result = run(text, "amp=o2", "amp.dtype=bfloat16")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "MatMul of unknown shape can't be counted" in result["observed"]["why"]


def test_an_unknown_number_of_samples_is_not_held_against_a_known_one(run):
    unknown = "@tf.function(input_signature=[tf.TensorSpec([None, 32]), tf.TensorSpec([None, 1])])"
    text = LOOP.replace("tape()", "tf.GradientTape()").replace("@tf.function", unknown)
    code, _, result = run(text, "amp=o2", "amp.dtype=bfloat16")
    assert (code, result["observed"]["verdict"]) == (0, "proved"), result["reason"]
    product = "\ntf.function(lambda given: tf.matmul(given, given, transpose_a=True))(tf.constant(inputs))\n"
    code, _, result = run(text + product, "amp=o2", "amp.dtype=bfloat16")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "products for an unknown number of samples beside others can't be counted" in result["observed"]["why"]


def test_a_script_with_every_layer_in_float32_proves_nothing(run):
    own = FIT
    for layer in ("Dense(64", "BatchNormalization(", "Dense(16"):
        own = own.replace(layer, f"{layer}, dtype='float32'" if "Dense" in layer else f"{layer}dtype='float32'")
    code, _, result = run(own, "amp=o2", "amp.dtype=bfloat16")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "nothing in forward is due in bfloat16" in result["observed"]["why"]


def test_a_script_may_choose_its_devices_and_its_threads_and_its_strategy_first(tmp_path):
    """In a process of its own, where TensorFlow has not begun yet: these are refused by it later on."""
    text = """\
import tensorflow as tf
tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(1)
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
"""
    fits = NET.strip() + '\nnet.compile(optimizer="sgd", loss="mse")'
    text += "".join(f"    {line}\n" for line in ("import keras", *fits.splitlines()))
    text += f"{HEAD}net.fit(inputs, targets, batch_size=32, epochs=2, verbose=0)\n"
    (tmp_path / "train.py").write_text(text)
    words = ["amp=o2", "amp.dtype=float16", f"script={tmp_path}/train.py", f"run={tmp_path}/run", "device=cpu"]
    ended = forking.run("recipes.tensorflow_.script", *words, f"workdir={tmp_path}")
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["observed"]["verdict"], result["observed"]["dtype"]) == ("proved", "float16")


TENSORFLOWS = {"get": "", "enable": "tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite"}
OURS = {"get": "from recipes.tensorflow_ import graph_rewrite", "enable": "graph_rewrite.enable"}
KERAS_PAGE = """\
import numpy as np
import tensorflow as tf
from recipes.tensorflow_.graph_rewrite import enable
x_train = np.random.default_rng(0).random((64, 32), dtype="float32")
y_train = np.eye(4, dtype="float32")[np.arange(64) % 4]
batch_size, epochs = 32, 2
model = tf.keras.models.Sequential([tf.keras.layers.Dense(64), tf.keras.layers.Dense(4, activation="softmax")])
opt = tf.keras.optimizers.SGD()
opt = enable(opt)
model.compile(loss="categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs)
"""
"""The same of TensorFlow 1.15, word for word but for the function's name, with data for it."""


def test_the_page_of_tensorflow_1_runs_with_todays_keras_and_is_proved(run):
    code, _, result = run(KERAS_PAGE, "amp=o1", "train.precision=script")
    assert (code, result["observed"]["verdict"], result["observed"]["dtype"]) == (0, "proved", "bfloat16")
    assert result["steps"] == 4


def test_the_pages_own_name_of_the_function_is_answered_with_what_to_import(run):
    text = KERAS_PAGE.replace("enable(opt)", "tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)")
    code, printed, result = run(text, "amp=o1", "train.precision=script")
    hint = "say `from recipes.tensorflow_.graph_rewrite import enable` and `opt = enable(opt)`, which does the same"
    assert code == 1
    assert f"script: TensorFlow 2 has no tf.train.experimental.{script.REWRITE}: {hint}\n" in printed.err
    assert result["reason"].endswith(hint)


@pytest.mark.parametrize(
    ("how", "precision", "verdict"),
    [(TENSORFLOWS, "launcher", "proved"), (TENSORFLOWS, "script", "contradicted"), (OURS, "script", "proved")],
    ids=["around it", "its own, which does nothing on a CPU", "ours"],
)
def test_the_graph_rewrites_own_function_in_a_script_for_tf_keras_is_observed_too(run, how, precision, verdict):
    pytest.importorskip("tf_keras")
    code, _, result = run(PAGE.format(**how), "amp=o1", f"train.precision={precision}")
    assert (code, result["observed"]["verdict"]) == (0 if verdict == "proved" else 1, verdict), result["reason"]
    assert result["observed"]["param_dtypes"] == {"float32": 32 * 64 + 64 + 64 + 1}
    assert result["steps"] == (2 if verdict == "contradicted" else 4), "it ends where it is contradicted"


def test_a_script_that_rewrites_by_itself_has_the_variables_it_was_given(run):
    name = f"{grappler.PREFIX}_DENYLIST_ADD"
    text = f"import os\nprint(os.environ.get({name!r}))\n"
    _, printed, _ = run(text, "amp=o1", "train.precision=script", environ={name: "Conv2D"})
    assert "Conv2D\n" in printed.out


def test_a_worker_that_never_starts_is_named_before_the_script_would_wait_for_it(run, monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = {"cluster": {"worker": [address, "127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    code, printed, result = run("print('started')", "amp=o2", environ={"TF_CONFIG": json.dumps(cluster)})
    assert (code, printed.out, result) == (1, "", {})
    assert printed.err.startswith("script: worker 1 at 127.0.0.1:1 did not join within 0.5 s; 1 of 2 did\nrank  host")
