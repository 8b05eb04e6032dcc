"""What the wrapper around a user's script does in every framework."""

from __future__ import annotations

import re

import keras
import pytest

from tests.amp_launcher.contract.frameworks import paddle, tf, torch
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script
PARAMETERS = 32 * 64 + 64
torch.optim.SGD([torch.zeros(1)])  # torch wraps the class's `step` with its first optimizer, for good
LOOP = {
    "torch": """
import torch
net = torch.nn.Linear(32, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
inputs = torch.randn(64, 32)
for number in range(3):
    optimizer.zero_grad()
    (net(inputs) ** 2).mean().backward()
    optimizer.step()
""",
    "tensorflow": """
import keras
import tensorflow as tf
net = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
optimizer = keras.optimizers.SGD(0.01)
inputs = tf.random.normal((64, 32))

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.cast(net(inputs), tf.float32) ** 2)
    optimizer.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)

for number in range(3):
    step()
""",
    "paddle": """
import paddle
net = paddle.nn.Linear(32, 64)
optimizer = paddle.optimizer.Adam(parameters=[{"params": net.parameters()}])
scaler = paddle.amp.GradScaler(enable=False)
inputs = paddle.rand([64, 32])
for number in range(3):
    with paddle.amp.auto_cast(enable=False):
        loss = (net(inputs) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
""",
}
OWN = {
    "torch": """
import torch
from amp_launcher.torch import Precision
precision = Precision()
net = torch.nn.Linear(32, 64)
net, optimizer = precision.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
for _ in range(3):
    optimizer.zero_grad()
    with precision:
        loss = (net(torch.randn(64, 32)) ** 2).mean()
    precision.backward(loss)
    precision.step(optimizer)
""",
    "tensorflow": """
import keras
import tensorflow as tf
from amp_launcher.tensorflow import Precision
precision = Precision()
make_net = lambda: keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
net, optimizer = precision.prepare(make_net, keras.optimizers.SGD(0.01))

@tf.function
def step(inputs):
    with precision:
        loss = tf.reduce_mean(net(inputs) ** 2)
    precision.backward(loss)
    precision.step(optimizer)

for _ in range(3):
    step(tf.random.normal((64, 32)))
""",
    "paddle": """
import paddle
from amp_launcher.paddle import Precision
precision = Precision()
net = paddle.nn.Linear(32, 64)
net, optimizer = precision.prepare(net, paddle.optimizer.SGD(0.1, parameters=net.parameters()))
for _ in range(3):
    with precision:
        loss = (net(paddle.rand([64, 32])) ** 2).mean()
    precision.backward(loss)
    precision.step(optimizer)
    optimizer.clear_grad()
""",
}
LOW_LAYER = '\nnet.add_sublayer("low", paddle.nn.Linear(4, 4))\nnet.low.to(dtype="bfloat16")\nfor'
CONTRADICTED = {
    "torch": (LOOP["torch"], "amp=o1", "train.precision=script"),
    "tensorflow": (LOOP["tensorflow"], "amp=o2", "train.precision=script"),
    "paddle": (LOOP["paddle"].replace("\nfor", LOW_LAYER), "amp=o0"),
}
REPLACED = {
    "torch": lambda: (torch.nn.Module.__call__, torch.optim.Optimizer.__init__, torch.optim.SGD.step),
    "tensorflow": lambda: (
        *(keras.Layer.__init__, keras.Layer.__call__, keras.Model.__init__, keras.optimizers.Optimizer.apply),
        *(keras.callbacks.CallbackList.__init__, tf.while_loop),
    ),
    "paddle": lambda: (paddle.nn.Layer.__call__, paddle.optimizer.SGD.step, paddle.static.Executor.run),
}


@pytest.mark.parametrize("framework", LOOP)
def test_a_script_in_float32_is_proved_and_leaves_a_result(run_script, framework):
    code, printed, result = run_script(framework, LOOP[framework], "amp=o0")
    assert code == 0, result.get("reason") or printed.err
    assert (result["framework"], result["mechanism"], result["steps"]) == (framework, "float32", 3)
    assert result["updates"] == {"attempted": 3, "applied": 3}
    assert (result["observed"]["verdict"], result["observed"]["half_flop_share"]) == ("proved", 0.0)
    assert result["observed"]["param_dtypes"] == {"float32": PARAMETERS}
    assert result["versions"][framework]


@pytest.mark.parametrize(
    ("framework", "level", "dtype"),
    [
        *(("torch", level, dtype) for level, dtype in (("o1", "float16"), ("o2", "float16"), ("o3", "bfloat16"))),
        *(("tensorflow", level, dtype) for level, dtype in (("o1", "bfloat16"), ("o2", "float16"), ("o3", "bfloat16"))),
        ("paddle", "o0", "float32"),
    ],
)
def test_a_script_that_asks_for_its_precision_may_have_any_level(run_script, framework, level, dtype):
    words = [f"amp={level}", *([] if level == "o0" else [f"amp.dtype={dtype}"])]
    asked = {"level": level} if level == "o0" else {"level": level, "dtype": dtype}
    code, _, result = run_script(framework, OWN[framework], *words, asked=asked)
    assert code == 0, result["reason"]
    assert (result["observed"]["verdict"], result["observed"]["dtype"], result["steps"]) == ("proved", dtype, 3)
    assert result["mechanism"] not in ("script", None)


@pytest.mark.parametrize("framework", CONTRADICTED)
def test_a_contradiction_ends_the_script_unless_no_proof_is_required(run_script, framework):
    text, *words = CONTRADICTED[framework]
    code, printed, result = run_script(framework, text.replace("range(3)", "range(300)"), *words)
    assert (code, result["status"], result["observed"]["verdict"]) == (1, "failed", "contradicted")
    assert result["steps"] <= 2
    assert re.search(rf"script: what ran was not {words[0]}( \(.*\))?; so the script was ended\n", printed.err)
    assert result["reason"].startswith(f"what ran was not {words[0]}: step 1: ")
    assert result["reason"].endswith("; so the script was ended")
    _, printed, result = run_script(framework, text, *words, "require_proof=false")
    assert result["observed"]["verdict"] == "contradicted"
    assert not result["reason"].endswith("was ended")
    assert printed.err.count(f"script: warning: {words[0]} is not applied: ") == 1


@pytest.mark.parametrize("framework", REPLACED)
def test_its_own_exit_code_is_kept_and_nothing_stays_replaced(run_script, framework):
    before = REPLACED[framework]()
    code, _, result = run_script(framework, LOOP[framework] + "raise SystemExit(7)", "amp=o0")
    assert (code, result["status"]) == (7, "failed")
    assert REPLACED[framework]() == before


@pytest.mark.parametrize(
    ("framework", "words", "complaint"),
    [
        ("torch", "amp=o2", "precision = Precision()"),
        ("tensorflow", "amp=o0 xla=true", "xla=true"),
        ("tensorflow", "amp=o2 amp.dtype=float16", "if the script scales it itself, say train.precision=script"),
        ("tensorflow", "amp=o2 amp.dtype=float16", "precision = Precision()  "),
        *(
            ("paddle", f"amp={level}", "on a CPU Paddle applies mixed precision to static graphs alone")
            for level in ("o1", "o2", "o3")
        ),
    ],
)
def test_what_cannot_be_applied_around_a_script_is_refused_before_it_starts(run_script, framework, words, complaint):
    code, printed, result = run_script(framework, f"print('it ran')\n{LOOP[framework]}", *words.split())
    assert (code, result, printed.out) == (2, {}, "")
    assert complaint in printed.err
