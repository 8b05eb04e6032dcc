"""The wrapper around a user's script in TensorFlow. `tests/recipes/contract` has what every framework does."""

from __future__ import annotations

import functools
import json
import random
import shutil
import socket
import sys

import keras
import pytest

from amp_launcher.around import random_draws, script
from amp_launcher.tensorflow import graph_rewrite
from amp_launcher.tensorflow.precision import grappler
from amp_launcher.world import rendezvous
from tests.amp_launcher import forking
from tests.amp_launcher.wrapped_scripts import run_script

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
FIT = f"""{HEAD}{NET}
net.compile(optimizer="sgd", loss="mse")
net.fit(inputs, targets, batch_size=32, epochs=2, verbose=0)
"""
OWN_FIT = f"""{HEAD}
from amp_launcher.tensorflow import Precision
def make_net():{NET.replace("net =", "return").replace(chr(10), chr(10) + "    ")}
net, optimizer = Precision().prepare(make_net, keras.optimizers.SGD(0.01))
net.compile(optimizer, loss="mse")
net.fit(inputs, targets, batch_size=32, epochs=2, verbose=0)
"""
LOOP = f"""{HEAD}{NET}
optimizer = keras.optimizers.SGD(0.01)

@tf.function
def step(x, y):
    with tf.GradientTape() as recorded:
        loss = tf.reduce_mean((tf.cast(net(x, training=True), tf.float32) - y) ** 2)
    optimizer.apply(recorded.gradient(loss, net.trainable_variables), net.trainable_variables)

for _ in range(3):
    step(inputs, targets)
"""
PAGE = """\
import numpy
import tensorflow as tf
import tf_keras
from amp_launcher.tensorflow import graph_rewrite
inputs = numpy.random.default_rng(0).random((64, 32), dtype="float32")
model = tf_keras.Sequential([tf_keras.layers.Dense(64, input_shape=(32,)), tf_keras.layers.Dense(1)])
opt = tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite(tf_keras.optimizers.legacy.SGD(0.01))
model.compile(loss="mse", optimizer=opt)
model.fit(inputs, inputs.sum(1, keepdims=True), batch_size=32, epochs=2, verbose=0)
"""
"""The example of the page of enable_mixed_precision_graph_rewrite, as TensorFlow 2 still runs it."""
KERAS_PAGE = """\
import numpy as np
import tensorflow as tf
from amp_launcher.tensorflow.graph_rewrite import enable
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


@pytest.fixture
def run(run_script):
    yield functools.partial(run_script, "tensorflow")
    graph_rewrite.disable()
    if "tf_keras" in sys.modules:
        sys.modules["tf_keras"].mixed_precision.set_global_policy("float32")


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
    assert ("dynamic loss scale from 32768" in printed.out) == (dtype == "float16"), "Keras's own"
    assert keras.config.dtype_policy().name == "float32"


@pytest.mark.parametrize(("level", "dtype"), [("o1", "bfloat16"), ("o2", "float16")])
def test_fit_of_a_prepared_model_is_proved(run, level, dtype):
    asked = {"level": level, "dtype": dtype}
    code, printed, result = run(OWN_FIT, *(f"amp.{key}={value}" for key, value in asked.items()), asked=asked)
    assert code == 0, result.get("reason") or printed.err
    assert (result["observed"]["verdict"], result["observed"]["dtype"]) == ("proved", dtype)
    assert result["steps"] in ((3, 4) if dtype == "float16" else (4,))  # the first scale may be too much
    assert "loss scale from 65536" in printed.out or dtype != "float16"


def test_another_scale_than_kerass_own_is_refused(run):
    code, printed, _ = run(FIT, "amp=o2", "amp.dtype=float16", "loss_scale=static")
    assert (code, "Keras scales the loss of this script by its own rule" in printed.err) == (2, True)


OLDER = f"""{HEAD}
import tf_keras
last = tf_keras.layers.Dense(64, dtype="float32", name="last")
model = tf_keras.Sequential([tf_keras.layers.Input((32,)), tf_keras.layers.Dense(64), last])
assert last.kernel.name == "last/kernel:0"
model.compile(loss="mse", optimizer="sgd")
model.fit(inputs, targets, batch_size=32, epochs=2, verbose=0)
"""
OLDER_LOOP = f"""{OLDER.partition("model.compile")[0]}
class Model:
    compile = fit = lambda self: None
Model().compile(), Model().fit()
from taping_helper import tape
optimizer = tf_keras.optimizers.SGD()
@tf.function
def step(x, y):
    with tape() as recorded:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    optimizer.minimize(loss, model.trainable_variables, tape=recorded)
for _ in range(3):
    step(inputs, targets)
"""


def of_policy(name):
    return FIT.replace("\nnet =", f'\nkeras.config.set_dtype_policy("{name}")\nnet =', 1)


def of_older_policy(name):
    return OLDER.replace("\nlast =", f'\ntf_keras.mixed_precision.set_global_policy("{name}")\nlast =')


def with_float32(*layers, text=FIT):
    for layer in layers:
        text = text.replace(f"keras.layers.{layer}", f'keras.layers.{layer}, dtype="float32"'.replace("(,", "("))
    return text


SCRIPT, O2 = "train.precision=script", "amp=o2 amp.dtype=bfloat16"
LAST = "kept in float32 as requested: MatMul in float32"
SQUARE = "loss=lambda true, result: tf.reduce_mean(tf.matmul(result, result, transpose_b=True))"
UNKNOWN_BATCH = LOOP.replace(
    "@tf.function", "@tf.function(input_signature=[tf.TensorSpec([None, 32]), tf.TensorSpec([None, 1])])"
)
KNOWN_BATCH = "\ntf.function(lambda given: tf.matmul(given, given, transpose_a=True))(tf.constant(inputs))\n"
HIDDEN = f"""
from taping_helper import tape
{LOOP.replace("tf.GradientTape()", "tape()")}
class No:
    def compile(self): pass
    fit = compile
No().compile()
No().fit()
"""
"""The text has compile and fit, and trains with a tape that a helper makes."""
EVALUATION = """
keras.config.set_dtype_policy("{}")
other = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(16)])
other.compile(loss="mse")
"""
EVALUATED = """
other.evaluate(inputs, targets, verbose=0)
other.predict(inputs, verbose=0)
"""
RECURRENT = (
    f"{HEAD}net = keras.Sequential([keras.Input((8, 4)), keras.layers.GRU(16), keras.layers.Dense(16)])\n"
    + FIT.removeprefix(HEAD + NET).replace("inputs,", "inputs.reshape(-1, 8, 4),")
)
LOOPED = "unknown work, which follows the level: MatMul in a loop of the model (5 calls)"
FLOAT32_LOOP = """
wide = tf.constant(inputs)
@tf.function
def power():
    return tf.while_loop(lambda at, x: at < 3, lambda at, x: (at + 1, tf.matmul(x, x, transpose_b=True) @ x), (0, wide))
power()
"""
BESIDE_A_LOOP = RECURRENT.replace(
    "keras.layers.GRU(16), ",
    "keras.layers.GRU(16), keras.layers.Lambda(lambda x: x + tf.cast(tf.norm(wide @ wide), x.dtype)), ",
).replace("net = ", "wide = tf.ones((64, 64))\nnet = ", 1)
OWN_STEPS = LOOP.replace(
    "optimizer.apply(recorded.gradient(loss, net.trainable_variables), net.trainable_variables)",
    "variables = [variable.value for variable in net.trainable_variables]\n"
    "    for variable, gradient in zip(variables, recorded.gradient(loss, variables)):\n"
    "        variable.assign_sub(0.01 * tf.cast(gradient, variable.dtype))",
)
EAGER = LOOP.replace("@tf.function\n", "")
EAGER_STEPS = LOOP.replace("optimizer.apply(", "return ").replace("variables), net.trainable_variables)", "variables)")
EAGER_STEPS = EAGER_STEPS.replace(
    "optimizer = keras.optimizers.SGD(0.01)", "iteration = tf.Variable(0, False, name='iteration', dtype=tf.int64)"
)
EAGER_STEPS = EAGER_STEPS.replace("range(3)", "range(2)").replace(
    "step(inputs, targets)",
    """\
for variable, gradient in zip(net.trainable_variables, step(inputs, targets)):
        variable.value.assign_sub(0.01 * gradient)
    iteration.assign_add(1)""",
)
"""Its second step is not seen to be taken before something else is executed."""
VERDICTS = {
    "a small product in float32 beside a loop": (
        *(BESIDE_A_LOOP, O2, "unknown", "and the work of MatMul in a loop of the model is unknown"),
    ),
    "a last layer in float32 that no optimizer steps": (
        with_float32("Dense(16", text=OWN_STEPS),
        *("amp=o3 amp.dtype=bfloat16", "proved", LAST),
    ),
    "a prediction in half precision after eager steps": (
        EAGER_STEPS + EVALUATION.format("mixed_bfloat16") + "other.predict(inputs, verbose=0)\n",
        *("amp=o0", "proved", "float32 in 100.0%"),
    ),
    **{
        f"a recurrent layer at {level}": (RECURRENT, f"amp={level} amp.dtype={dtype}", "proved", LOOPED)
        for level, dtype in (("o0", "auto"), ("o1", "bfloat16"), ("o2", "bfloat16"))
    },
    "a recurrent layer and an unknown batch": (
        *(RECURRENT.replace("rand(64", "rand(70"), O2, "proved"),
        "unknown work, which follows the level: ",
    ),
    "a loop in float32": (
        FIT + FLOAT32_LOOP,
        O2,
        "unknown",
        "MatMul in a loop of the model can't be counted (2 calls)",
    ),
    "a loop in half precision at o0": (
        FIT + FLOAT32_LOOP.replace("(inputs)", "(inputs, tf.bfloat16)"),
        *("amp=o0", "unknown", "MatMul in a loop of the model can't be counted (2 calls)"),
    ),
    "an evaluation in float32": (FIT + EVALUATION.format("float32") + EVALUATED, O2, "proved", "bfloat16 in 100.0%"),
    "an evaluation in float32 between steps": (
        FIT + EVALUATION.format("float32") + EVALUATED + FIT.removeprefix(HEAD + NET),
        O2,
        "proved",
        "100.0% of forward",
    ),
    "a prediction before training": (
        FIT.replace("net.fit", "net.predict(inputs, verbose=0)\nnet.fit"),
        O2,
        "proved",
        "100.0% of forward",
    ),
    "an evaluation alone": (EVALUATION.format("mixed_bfloat16").join([HEAD, EVALUATED]), O2, "unknown", "in backward"),
    "what it evaluates with is executed elsewhere too": (
        FIT
        + """
call = tf.function(lambda given: tf.matmul(given, given))
class Model(keras.Model):
    def test_step(self, data):
        return {"loss": tf.reduce_sum(call(data[0]))}
    def make_test_function(self, force=False):
        self.test_function = lambda iterator: {"loss": tf.reduce_sum(call(tf.ones((640, 640))))}
        return self.test_function
evaluated = Model()
evaluated.compile(loss="mse")
evaluated.evaluate(inputs, targets, verbose=0)
call(tf.ones((640, 640)))
""",
        O2,
        "contradicted",
        "MatMul in float32",
    ),
    "its own policy": (of_policy("mixed_bfloat16"), f"amp=o2 {SCRIPT}", "proved", ""),
    "no policy of its own": (FIT, f"amp=o2 {SCRIPT}", "contradicted", ""),
    "a policy at o0": (of_policy("mixed_bfloat16"), f"amp=o0 {SCRIPT}", "contradicted", ""),
    "a policy taken back": (of_policy("float32"), "amp=o2", "contradicted", ""),
    "a last layer in float32 at o2": (with_float32("Dense(16"), O2, "proved", LAST),
    "every layer in float32": (
        *(with_float32("Dense(64", "BatchNormalization(", "Dense(16"), O2, "unknown"),
        "nothing in forward is due in bfloat16",
    ),
    "a loop in bfloat16": (LOOP, O2, "proved", ""),
    **{
        f"a loop without a graph at {level}": (EAGER, f"amp={level}", verdict, why)
        for level, verdict, why in (
            ("o0", "proved", "float32 in 100.0% of forward and 100.0% of backward"),
            ("o1", "contradicted", "0.0% of forward and 0.0% of backward ran in bfloat16"),
            ("o2", "proved", "bfloat16 in 100.0% of forward and 100.0% of backward"),
        )
    },
    **{
        f"samples drawn without a graph at {level}": (
            *(LOOP.replace("optimizer =", "net(inputs)\noptimizer =") + "\nnet(inputs)\n", f"amp={level}", "proved"),
            "100.0% of forward and 100.0% of backward",
        )
        for level in ("o0", "o1", "o2")
    },
    "products without a graph and without a gradient": (
        *(f"{HEAD}{NET}\nnet(inputs)\n", "amp=o0", "unknown", "no matrix product or convolution was seen in backward"),
    ),
    "a last layer in float32 without a graph": (
        *(with_float32("Dense(16", text=EAGER), O2, "unknown", "MatMul outside of any graph can't be counted"),
    ),
    "a hidden loop in float16": (
        *(HIDDEN, "amp=o2 amp.dtype=float16", "unknown"),
        "nothing scaled the loss of optimizer SGD",
    ),
    "work that grows with the square of an unknown batch": (
        *(FIT.replace("rand(64", "rand(70").replace('loss="mse"', SQUARE), O2, "unknown"),
        "MatMul of unknown shape can't be counted",
    ),
    "an unknown batch": (UNKNOWN_BATCH, O2, "proved", ""),
    "an unknown batch beside a known one": (
        *(UNKNOWN_BATCH + KNOWN_BATCH, O2, "unknown"),
        "products for an unknown number of samples beside others can't be counted",
    ),
    "tf_keras with its own policy and a last layer in float32": (
        *(of_older_policy("mixed_bfloat16"), f"{O2} {SCRIPT}", "proved", LAST),
    ),
    "tf_keras at o2 in float16": (OLDER, "amp=o2 amp.dtype=float16", "proved", LAST),
    "tf_keras at o3": (OLDER, "amp=o3 amp.dtype=bfloat16", "proved", LAST),
    "a hidden loop of tf_keras in float16": (
        *(OLDER_LOOP, "amp=o2 amp.dtype=float16", "unknown"),
        "nothing scaled the loss of its optimizer",
    ),
    "the page of TensorFlow 1 in today's Keras": (KERAS_PAGE, f"amp=o1 {SCRIPT}", "proved", ""),
    "the page in tf_keras, and o1 around it": (PAGE, "amp=o1", "proved", ""),
    "the page in tf_keras, whose function does nothing on a CPU": (PAGE, f"amp=o1 {SCRIPT}", "contradicted", ""),
    "the page in tf_keras with our function": (
        *(PAGE.replace("tf.compat.v1.mixed_precision.enable_mixed_precision_graph_rewrite", "graph_rewrite.enable"),),
        *(f"amp=o1 {SCRIPT}", "proved", ""),
    ),
}


@pytest.mark.parametrize(("text", "words", "verdict", "why"), VERDICTS.values(), ids=VERDICTS)
def test_a_script_is_held_against_the_level(run, tmp_path, text, words, verdict, why):
    if "tf_keras" in text:
        pytest.importorskip("tf_keras")
    (tmp_path / "taping_helper.py").write_text("import tensorflow as tf\ntape = tf.GradientTape\n")
    code, printed, result = run(text, *words.split())
    observed = result["observed"]
    assert (code, observed["verdict"], why in observed["why"]) == (verdict == "contradicted", verdict, True), observed[
        "why"
    ]
    told = (printed.out + printed.err).count(observed["why"])
    assert 1 <= told <= 1 + (verdict == "unknown"), "at its end, and of what ends nothing before"
    if verdict == "contradicted" and "evaluate" not in text:
        assert result["steps"] == 2, "it ends where it is contradicted"
    if SCRIPT in words:
        assert result["mechanism"] == "script"
    if why == LAST:
        assert observed["half_flop_share"] < 0.9
    if text in (KERAS_PAGE, PAGE):
        assert result["steps"] == (2 if verdict == "contradicted" else 4)
    if "tf_keras" in text and "last/kernel" not in text:
        assert observed["param_dtypes"] == {"float32": 32 * 64 + 64 + 64 + 1}


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


SESSION = """\
import tensorflow.compat.v1 as tf
graph = tf.Graph()
with graph.as_default():
    weights = tf.get_variable("weights", (32, 16))
    loss = tf.reduce_mean(tf.matmul(tf.ones((8, 32)), weights) ** 2)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
"""


@pytest.mark.parametrize(
    ("text", "level", "advice"),
    [
        (EAGER, "o1", "only graphs are rewritten, and the script trains outside of them: write @tf.function"),
        (SESSION, "o2", "a policy is that of Keras's layers, and the script has none: on a CPU amp=o1"),
    ],
    ids=["without graphs", "without layers"],
)
def test_what_a_level_does_not_reach_is_said_with_what_to_do(run, text, level, advice):
    code, _, result = run(text, f"amp={level}")
    assert (code, advice in result["reason"]) == (1, True), result["reason"]


@pytest.mark.parametrize("function", ["tf.function", "lambda called: called"], ids=["in a graph", "eagerly"])
def test_a_script_that_mixes_the_dtypes_of_a_policy_is_told_to_cast(run, function):
    code, printed, result = run(f"{HEAD}{NET}\n({function})(lambda: net(inputs) * tf.ones((64, 16)))()", "amp=o2")
    assert (code, "under Keras's policy mixed_bfloat16 its layers give bfloat16" in result["reason"]) == (1, True)
    assert "script: under Keras's policy" in printed.err


def test_operations_judged_early_are_counted_once_at_the_end(run, tmp_path):
    """Two networks, the second of which is made after the first judgement."""
    second = FIT.removeprefix(HEAD).replace("net", "other").replace("Dense(64)", "Dense(640)")
    alone, both = run(FIT, "amp=o2")[2]["observed"], run(FIT + second, "amp=o2")[2]["observed"]
    assert (alone["verdict"], both["verdict"]) == ("proved", "proved"), both["why"]
    assert sum(both["param_dtypes"].values()) > 5 * sum(alone["param_dtypes"].values())
    mixed = FIT + "\nkeras.config.set_dtype_policy('float32')\n" + second
    shutil.rmtree(tmp_path / "run")  # which has what the first two observed
    code, _, result = run(mixed, "amp=o2")
    assert (code, result["observed"]["verdict"]) == (1, "contradicted")
    share = result["observed"]["half_flop_share"]
    assert 0.05 < share < 0.15, "a tenth of the work, which was observed before the first judgement"


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_smaller_last_batch_and_several_steps_at_once_change_nothing_of_what_is_proved(run, level):
    """Of how many samples a graph is, is then unknown, and the steps are a loop of Keras's."""
    kept = FIT.replace("keras.layers.Dense(16)]", 'keras.layers.Dense(16, dtype="float32")]') if level == "o2" else FIT
    once = run(kept, f"amp={level}", "amp.dtype=bfloat16")[2]["observed"]
    for text in (kept.replace("rand(64", "rand(70"), kept.replace('"mse")', '"mse", steps_per_execution=2)')):
        code, _, result = run(text, f"amp={level}", "amp.dtype=bfloat16")
        assert (code, result["observed"]["verdict"]) == (0, "proved"), result["reason"]
        assert result["observed"]["half_flop_share"] == once["half_flop_share"]
        assert "rand(70" not in text or result["steps"] == 6  # of the attempt that began anew in this folder


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
    ended = forking.run("amp_launcher.tensorflow.script", *words, f"workdir={tmp_path}")
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["observed"]["verdict"], result["observed"]["dtype"]) == ("proved", "float16")
    assert result["throughput"]["counted"] == "SGD", "each replica has a count of its own"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("os.environ['KERAS_BACKEND'] = 'jax'", "Keras is on jax here, by KERAS_BACKEND; say framework=none"),
        ("os.environ['KERAS_HOME'] = '{}'", "Keras is on torch here, by {}/keras.json; say framework=torch"),
    ],
)
def test_a_script_that_has_keras_on_another_backend_does_not_train_on_tensorflow(
    run, tmp_path, monkeypatch, line, says
):
    monkeypatch.setitem(sys.modules, "keras", keras)  # an import that fails drops it
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    text = "import os, sys\nassert 'keras' not in sys.modules\nimport tensorflow\nprint('started')\n"
    text += f"{line.format(tmp_path)}\nimport keras\nprint('trained')"
    code, printed, result = run(text, "amp=o0", environ={"KERAS_BACKEND": "", "KERAS_HOME": ""})
    assert (code, "started" in printed.out, "trained" in printed.out) == (1, True, False)
    assert says.format(tmp_path) in result["reason"]


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_a_script_that_sets_a_seed_before_its_import_draws_behind_it_what_it_draws_alone(run, monkeypatch, name):
    monkeypatch.setattr(random_draws, "_drawn", [functools.partial(random.getrandbits, 32)])
    monkeypatch.setitem(sys.modules, "keras", keras)
    _, printed, _ = run(f"import random\nrandom.seed(3)\nimport {name}\nprint(random.random())", "amp=o0")
    alone = random.Random(3)
    alone.getrandbits(32)
    assert str(alone.random()) in printed.out.split(), printed.err


def test_the_pages_own_name_of_the_function_is_answered_with_what_to_import(run):
    text = KERAS_PAGE.replace("enable(opt)", "tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)")
    code, printed, result = run(text, "amp=o1", "train.precision=script")
    hint = "say `from amp_launcher.tensorflow.graph_rewrite import enable` and `opt = enable(opt)`, which does the same"
    assert code == 1
    assert f"script: TensorFlow 2 has no tf.train.experimental.{script.REWRITE}: {hint}\n" in printed.err
    assert result["reason"].endswith(hint)


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
