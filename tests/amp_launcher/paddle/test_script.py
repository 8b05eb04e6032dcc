"""The wrapper around a user's script in Paddle. `tests/recipes/contract` has what every framework does."""

from __future__ import annotations

import functools
import random
import re

import paddle
import pytest

from amp_launcher.around import random_draws
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script
HEAD = """\
import paddle
from paddle import nn
paddle.seed(0)
inputs = paddle.rand([16, 8])
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
"""
FIT = """
model = paddle.Model(net)
model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()), nn.MSELoss())
data = paddle.io.TensorDataset([inputs, paddle.zeros([16, 4])])
model.fit(data, batch_size=4, epochs=1, verbose=0)
"""
LOOP = """
adam = paddle.optimizer.Adam(parameters=net.parameters())
scaler = paddle.amp.GradScaler()
{before}
for number in range({steps}):
    ({output} ** 2).mean().backward()
    scaler.step(adam)
    adam.clear_grad()
"""


@pytest.fixture
def run(run_script):
    return lambda text, *words: run_script("paddle", HEAD + text, "amp=o0", *words)


def loop(steps=3, output="net(inputs)", before="", after=""):
    return LOOP.format(steps=steps, output=output, before=before) + after


def test_paddles_fit_is_proved_and_its_steps_are_counted(run):
    code, printed, result = run(FIT)
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, 4, "proved"), printed.err
    assert result["observed"]["param_dtypes"] == {"float32": 8 * 32 + 32 + 32 * 4 + 4}
    assert result["observed"]["step_flops"] == 2 * 4 * (2 * 8 * 32 + 3 * 32 * 4), "the inputs have no gradient"


def test_two_steps_of_each_decade_are_watched_and_no_evaluation_before_them(run):
    evaluation = """
    if number == 17:
        with paddle.no_grad():
            paddle.matmul(net(inputs), paddle.ones([4, 4], "bfloat16").astype("float32"))
"""
    code, _, result = run(loop(109, after=evaluation))
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, 109, "proved"), result["observed"]["why"]
    # Later ones are as many as the time of the first pays for.
    assert re.search(r"at steps 1, 19(, \d+)* on 1 rank$", result["observed"]["why"])


@pytest.mark.parametrize(("steps", "verdict"), [(18, "proved"), (19, "contradicted")])
def test_half_precision_that_a_script_turns_to_later_is_seen_where_it_is_watched(run, steps, verdict):
    late = """
    if number == 9:
        net.add_sublayer("low", nn.Linear(4, 4))
        net.low.to(dtype="bfloat16")
        net.low.forward = lambda inputs: inputs
"""
    result = run(loop(steps, after=late))[2]
    assert result["observed"]["verdict"] == verdict, result["observed"]["why"]
    assert verdict == "proved" or "step 19" in result["observed"]["why"]


def test_static_graphs_are_not_watched_and_that_is_said(run):
    text = """
import numpy
paddle.enable_static()
main, start = paddle.static.Program(), paddle.static.Program()
with paddle.static.program_guard(main, start):
    loss = paddle.mean(paddle.static.nn.fc(paddle.static.data("inputs", [8, 16]), 4))
    paddle.optimizer.SGD(0.1).minimize(loss)
executor = paddle.static.Executor()
executor.run(start)
executor.run(main, feed={"inputs": numpy.ones((8, 16), "float32")}, fetch_list=[loss])
paddle.disable_static()
"""
    code, _, result = run(text.replace("paddle.disable_static()", "raise OSError"), "require_proof=true")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "static graphs were executed, which are not observed" in result["reason"]
    assert result["reason"].endswith("; so the script was ended"), "at the first of them"
    code, printed, result = run(text)
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, None, "unknown")
    assert result["observed"]["why"].startswith("step 1: static graphs were executed, which are not observed")
    assert "steps/s not known: static graphs were executed" in printed.out
    code, _, result = run(loop() + text.replace("paddle.disable_static()", ""))
    paddle.disable_static()
    assert (code, result["observed"]["verdict"]) == (0, "unknown"), "after eager steps, and to the end"


def test_a_transformer_is_proved_of_the_products_of_its_attention_too(run):
    attention = """
net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 1)
inputs = inputs.reshape([2, 8, 8])
"""
    code, _, result = run(attention + loop())
    assert (code, result["observed"]["verdict"]) == (0, "proved"), result["observed"]["why"]


def test_what_cannot_be_counted_leaves_it_unknown_which_fails_a_run_that_needs_a_proof(run):
    code, printed, result = run(
        loop(output="paddle.einsum('ij,jk->ik', net(inputs), paddle.ones([4, 2]))"), "require_proof=true"
    )
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "einsum can't be counted" in result["observed"]["why"]
    assert "script: nothing proves that amp=o0 ran" in printed.err


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_trains_as_alone_and_is_unknown(run, whole):
    # What it compiles in an observed step runs in the steps after it as well.
    compiled = f"""
layers = [layer for _ in range(9) for layer in (nn.Linear(8, 8), nn.Tanh())]
net = paddle.jit.to_static(nn.Sequential(*layers), full_graph={whole})
"""
    code, printed, result = run(compiled + loop(steps=12))
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, 12, "unknown"), printed.err
    assert "a graph that Paddle compiled can't be counted" in result["observed"]["why"]


def test_how_many_steps_a_scaler_skipped_is_not_known(run):
    code, printed, result = run(loop(before="scaler.is_enable = lambda: True  # as on a GPU"))
    assert (code, result["updates"]) == (0, {"attempted": 3, "applied": None}), printed.err


def test_a_script_that_sets_a_seed_before_its_import_draws_behind_it_what_it_draws_alone(run_script, monkeypatch):
    monkeypatch.setattr(random_draws, "_drawn", [functools.partial(random.getrandbits, 32)])
    text = "import random\nrandom.seed(3)\nimport paddle\nprint(random.random())"
    _, printed, _ = run_script("paddle", text, "amp=o0")
    alone = random.Random(3)
    alone.getrandbits(32)
    assert str(alone.random()) in printed.out.split(), printed.err
