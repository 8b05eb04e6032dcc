"""The wrapper around a user's script in Paddle, run in this process as a user's file is run."""

from __future__ import annotations

import json
import sys

import pytest

from recipes.paddle_.script import PaddleWrapper
from recipes.settings import Settings
from recipes.trainer import script as shared
from recipes.typed import plain

HEAD = """\
import paddle
from paddle import nn
paddle.seed(0)
inputs = paddle.rand([16, 8])
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
"""
LOOP = (
    HEAD
    + """
adam = paddle.optimizer.Adam(parameters=[{{"params": net.parameters()}}])
scaler = paddle.amp.GradScaler(enable=False)
for _ in range(3):
    with paddle.amp.auto_cast(enable=False):
        loss = ({output} ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(adam)
    scaler.update()
    adam.clear_grad()
"""
)
FIT = (
    HEAD
    + """
model = paddle.Model(net)
model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()), nn.MSELoss())
data = paddle.io.TensorDataset([inputs, paddle.zeros([16, 4])])
model.fit(data, batch_size=4, epochs=1, verbose=0)
"""
)
OWN = (
    HEAD
    + """
from recipes.paddle_.precision import Precision
precision = Precision.from_env()
net = precision.cast(net)
sgd = precision.optimizer(net, paddle.optimizer.SGD(0.1, parameters=net.parameters()))
for _ in range(3):
    with precision.forward():
        result = net(precision.input(inputs))
    precision.backward((precision.output(result) ** 2).mean())
    precision.step(sgd)
    precision.update()
    sgd.clear_grad()
"""
)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs a script under the wrapper in this process: its exit code, what it printed, and its result."""

    def start(text, *words):
        (tmp_path / "train.py").write_text(text)
        settings = plain(Settings(recipe="script", framework="paddle"))
        (tmp_path / "plan.json").write_text(json.dumps({"schema": 2, "settings": {**settings, "amp": {"level": "o0"}}}))
        monkeypatch.setenv("LAUNCHER_SPEC", str(tmp_path / "plan.json"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", list(sys.argv))
        monkeypatch.setattr(sys, "path", list(sys.path))
        words = [*words, "device=cpu", f"script={tmp_path}/train.py", f"run={tmp_path / 'run'}"]
        code = shared.main("paddle", words, PaddleWrapper)
        result = tmp_path / "run" / "result.json"
        return code, capfd.readouterr(), json.loads(result.read_text()) if result.exists() else {}

    return start


@pytest.mark.parametrize(
    ("text", "steps"), [(LOOP.format(output="net(inputs)"), 3), (FIT, 4), (OWN, 3)], ids=["a loop", "fit", "from_env"]
)
def test_a_script_in_float32_is_proved(run, text, steps):
    code, printed, result = run(text, "amp=o0")
    assert code == 0, result.get("reason") or printed.err
    assert (result["framework"], result["mechanism"], result["steps"]) == ("paddle", "float32", steps)
    assert (result["observed"]["verdict"], result["observed"]["half_flop_share"]) == ("proved", 0.0)
    assert result["observed"]["param_dtypes"] == {"float32": 8 * 32 + 32 + 32 * 4 + 4}
    assert result["versions"]["paddle"]


LONG = LOOP.format(output="net(inputs)").replace("for _ in range(3)", "for number in range(1, {steps})")


def test_two_steps_of_each_decade_are_watched_and_no_evaluation_before_them(run):
    evaluation = """
    if number == 82:
        with paddle.no_grad():
            paddle.matmul(net(inputs), paddle.ones([4, 4], "bfloat16").astype("float32"))
"""
    code, _, result = run(LONG.replace("{steps}", "110") + evaluation, "amp=o0")
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, 109, "proved"), result["observed"]["why"]
    assert result["observed"]["why"].endswith("at steps 1, 83 on 1 rank")


@pytest.mark.parametrize(("steps", "verdict"), [("83", "proved"), ("84", "contradicted")])
def test_half_precision_that_a_script_turns_to_later_is_seen_where_it_is_watched(run, steps, verdict):
    late = """
    if number == 50:
        net.add_sublayer("low", nn.Linear(4, 4))
        net.low.to(dtype="bfloat16")
        net.low.forward = lambda inputs: inputs
"""
    result = run(LONG.replace("{steps}", steps) + late, "amp=o0")[2]
    assert result["observed"]["verdict"] == verdict, result["observed"]["why"]
    assert verdict == "proved" or "step 83" in result["observed"]["why"]


def test_static_graphs_are_not_watched_and_that_is_said(run):
    text = """
import numpy
import paddle
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
    code, _, result = run(text.replace("paddle.disable_static()", "raise OSError"), "amp=o0")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "static graphs were executed, which are not observed" in result["reason"]
    assert result["reason"].endswith("; so the script was ended"), "at the first of them"
    code, printed, result = run(text, "amp=o0", "require_proof=false")
    assert (code, result["steps"], result["observed"]["verdict"]) == (0, None, "unknown")
    assert result["observed"]["why"].startswith("step 1: static graphs were executed, which are not observed")
    assert "steps/s not known: static graphs were executed" in printed.out


def test_what_no_layer_multiplies_leaves_it_unknown_which_fails_the_run(run):
    code, printed, result = run(LOOP.format(output="paddle.matmul(net(inputs), paddle.ones([4, 2]))"), "amp=o0")
    assert (code, result["observed"]["verdict"]) == (1, "unknown")
    assert "products in forward, and Paddle counted" in result["observed"]["why"]
    assert "script: nothing proves that amp=o0 ran" in printed.err


def test_half_precision_parameters_under_o0_are_contradicted(run):
    text = HEAD.replace("nn.ReLU()", "Odd()").replace(
        "net =",
        """
class Odd(nn.Layer):
    def __init__(self):
        super().__init__()
        self.low = nn.Linear(2, 2)
        self.low.to(dtype="bfloat16")

    def forward(self, inputs):
        return inputs

net =""",
    )
    text += LOOP.format(output="net(inputs)").removeprefix(HEAD)
    code, _, result = run(text.replace("range(3)", "range(300)"), "amp=o0")
    assert (code, result["observed"]["verdict"]) == (1, "contradicted"), result["observed"]["why"]
    assert result["steps"] == 2
    assert result["reason"].endswith("; so the script was ended")
    _, printed, result = run(text, "amp=o0", "require_proof=false")
    assert "script: warning: amp=o0 is not applied: " in printed.err
    assert not result["reason"].endswith("was ended")


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_on_a_cpu_where_paddle_applies_nothing_a_level_is_refused(run, level):
    code, printed, result = run(OWN, f"amp={level}")
    assert (code, result) == (2, {})
    assert "Paddle applies no mixed precision on a CPU" in printed.err


def test_its_own_exit_code_is_kept_and_nothing_stays_replaced(run):
    import paddle

    def replaced():
        return paddle.nn.Layer.__call__, paddle.optimizer.SGD.step, paddle.static.Executor.run

    before = replaced()
    code, _, result = run(HEAD + "net(inputs)\nraise SystemExit(7)", "amp=o0")
    assert (code, result["status"]) == (7, "failed")
    assert replaced() == before


def test_how_many_steps_a_scaler_skipped_is_not_known(run):
    text = LOOP.format(output="net(inputs)")
    scaled = """
scaler = paddle.amp.GradScaler()
scaler.is_enable = lambda: True  # as on a GPU
"""
    code, printed, result = run(text.replace("for _ in", f"{scaled}for _ in"), "amp=o0")
    assert (code, result["updates"]) == (0, {"attempted": 3, "applied": None}), printed.err
