"""The wrapper around a user's script in torch: run as a user's file is run, in this process where one is enough."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from recipes.precision.levels import Amp
from recipes.torch_.script import TorchWrapper
from recipes.trainer import script as shared
from recipes.typed import plain
from tests.recipes.forking import environment
from tests.recipes.torch_.scripts import HEAD, PLAIN, fork, in_process
from tests.recipes.wrapped_scripts import run_script

assert run_script

OWN = (
    HEAD
    + """
from recipes.torch_.precision import Precision
precision = Precision.from_env()
net = precision.cast(net)
optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
for step in range(5):
    optimizer.zero_grad()
    with precision.forward():
        loss = ((net(precision.input(inputs)).float() - targets) ** 2).mean()
    precision.backward(loss)
    precision.step(optimizer)
    precision.update()
"""
)
GAN = (
    HEAD
    + """
critic = nn.Linear(1, 1)
first, second = (torch.optim.SGD(network.parameters(), lr=1e-4) for network in (net, critic))
for step in range(3):
    first.zero_grad()
    critic(net(inputs)).mean().backward()
    first.step()
    second.zero_grad()
    critic(net(inputs).detach()).mean().backward()
    second.step()
"""
)
AUTOCAST = "    with torch.autocast('cpu', {}):\n        loss = "


@pytest.fixture
def run(run_script, tmp_path):
    return in_process(run_script, tmp_path)


CAST = """
import torch
from torch import nn
from recipes.torch_.precision import Precision
def net():
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.ModuleDict({"body": body, "head": nn.Linear(64, 16)})
class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, inputs):
        return self.model["head"](self.model["body"](inputs))
precision = Precision.from_env()
nets = [precision.cast(net()) for _ in range(COUNT)]
optimizers = [precision.optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in nets]
for step in range(3):
    with precision.forward():
        inputs = precision.input(torch.ones(16, 32))
        loss = sum(precision.output(CALL).square().mean() for model in nets)
    precision.backward(loss)
    for optimizer in optimizers:
        precision.step(optimizer)
        optimizer.zero_grad()
    precision.update()
"""


@pytest.mark.parametrize("asked", [Amp(level="o2", keep_fp32=("head",)), Amp(level="o2", gemm="fp8-tensorwise")])
@pytest.mark.parametrize("call", ['model["head"](model["body"](inputs))', "Around(model)(inputs)"])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_are_known_however_the_script_calls_the_model(run, asked, call, count):
    word = "amp.keep_fp32=[head]" if asked.keep_fp32 else f"amp.gemm={asked.gemm}"
    text = CAST.replace("CALL", call).replace("COUNT", str(count))
    ended = run(text, "amp=o2", word, asked=plain(asked))
    assert (ended.code, ended.verdict) == (0, "proved"), ended
    kept = "kept in float32 as requested: linear in float32"
    assert (kept if asked.keep_fp32 else f"of {2 * count} linear layers") in ended.result["observed"]["why"]


def test_a_script_that_knows_nothing_of_precision_is_proved_at_o1_and_at_o0_and_learns_alike(run):
    half, single = run(PLAIN, "amp=o1"), run(PLAIN, "amp=o0")
    assert (half.code, half.result["status"], half.result["mechanism"]) == (0, "done", "autocast_around")
    expected = {"verdict": "proved", "dtype": "bfloat16", "half_flop_share": 1.0}
    assert {key: half.result["observed"][key] for key in expected} == expected
    assert half.result["steps"] == 30
    assert not torch.is_autocast_enabled("cpu")
    assert (single.code, single.verdict, single.result["observed"]["half_flop_share"]) == (0, "proved", 0.0)
    losses = [float(ended.out.split("ended at ")[1].split()[0]) for ended in (half, single)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] < 20, "36 at first: with autocast's cache every forward would see the first weights"


@pytest.mark.parametrize(
    "words", [("amp=o2",), ("amp=o3",), ("amp=o1", "amp.dtype=float16"), ("amp=o1", "amp.deny=[mm]")]
)
def test_a_mode_that_needs_changes_in_the_script_is_refused_with_the_lines_to_add(run, words):
    ended = run("raise SystemExit('it ran')", *words)
    assert (ended.code, ended.result) == (2, {})
    assert "precision = Precision.from_env()" in ended.err and "it ran" not in ended.err


def test_a_script_that_asks_in_a_helper_is_noticed_while_it_runs(run, tmp_path):
    (tmp_path / "asking_helper.py").write_text(
        "from recipes.torch_.precision import Precision as P\nmake = P.from_env\n"
    )
    text = OWN.replace("Precision.from_env()", "make()").replace(
        "from recipes.torch_.precision import Precision", "from asking_helper import make"
    )
    ended = run(text, "amp=o1", asked={"level": "o1"})
    assert (ended.code, ended.result["mechanism"], ended.verdict) == (0, "autocast", "proved")


def test_a_short_script_that_leaves_its_precision_after_some_steps_is_contradicted(run):
    own = PLAIN.replace("    loss = ", AUTOCAST.format("dtype=torch.bfloat16, enabled=step < 5"))
    ended = run(own, "amp=o1", "train.precision=script")
    assert (ended.code, ended.verdict) == (1, "contradicted"), ended.err
    assert "step 19" in ended.result["observed"]["why"]


def test_a_script_that_sets_its_own_precision_is_judged_by_the_level(run):
    own = PLAIN.replace("    loss = ", AUTOCAST.format("dtype=torch.bfloat16"))
    ended = run(own, "amp=o1", "train.precision=script")
    assert (ended.code, ended.result["mechanism"], ended.verdict) == (0, "script", "proved")


IN_CLOSURE = """
class Muon(torch.optim.Muon):
    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            closure()
        super().step()
optimizer = OPTIMIZER
def closure():
    optimizer.zero_grad()
    loss = ((net(inputs) - targets) ** 2).mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
"""


@pytest.mark.parametrize("optimizer", ["torch.optim.LBFGS(net.parameters())", "Muon([net[0].weight, net[2].weight])"])
@pytest.mark.parametrize("level", ["o0", "o1"])
def test_an_optimizers_own_products_do_not_count_where_it_calls_the_model(run, optimizer, level):
    ended = run(HEAD + IN_CLOSURE.replace("OPTIMIZER", optimizer), f"amp={level}")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.err
    assert ended.result["observed"]["half_flop_share"] == (1.0 if level == "o1" else 0.0)


AFTER_ERROR = """\
    try:
        optimizer.step(lambda: 1 / 0)
    except ZeroDivisionError:
        pass
    with torch.no_grad(), torch.autocast('cpu', enabled=False):
        loss_before = net(inputs).square().mean()
    (loss / loss_before).backward()
"""


def test_after_a_closure_that_raised_what_is_computed_without_gradients_still_counts(run):
    ended = run(PLAIN.replace("    loss.backward()\n", AFTER_ERROR), "amp=o1")
    assert (ended.code, ended.verdict) == (1, "contradicted"), ended.err


BY_VMAP = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
weights = dict(net.named_parameters())
def loss(weights, input, target):
    return ((torch.func.functional_call(net, weights, (input[None],)) - target) ** 2).mean()
for step in range(3):
    values = {name: weight.detach() for name, weight in weights.items()}
    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(values, inputs, targets)
    for name, weight in weights.items():
        weight.grad = gradients[name].mean(0)
    optimizer.step()
"""
IN_SUBCLASS = """
class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)
    def __init__(self, data):
        self.data_of_it = data
    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        kept = torch.ops.aten.t.default, torch.ops.aten.detach.default
        out = func(*(arg.data_of_it if isinstance(arg, cls) else arg for arg in args), **kwargs or {})
        return cls(out) if func in kept else out
optimizer = torch.optim.SGD(list(net.parameters()), lr=0.01)
net[0].weight = nn.Parameter(Wrapped(net[0].weight.detach()))
for step in range(3):
    optimizer.zero_grad()
    ((net(inputs) - targets) ** 2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("text", [BY_VMAP, IN_SUBCLASS])
@pytest.mark.parametrize("level", ["o0", "o1"])
def test_products_of_tensors_without_memory_are_judged_by_what_they_become(run, text, level):
    ended = run(HEAD + text, f"amp={level}")
    assert (ended.code, ended.verdict) == (0, "proved"), ended.err
    assert ended.result["observed"]["half_flop_share"] == (1.0 if level == "o1" else 0.0)


SCALED = PLAIN.replace("for step", "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**30)\nfor step", 1)
SCALED = SCALED.replace(
    "    loss.backward()\n    optimizer.step()",
    "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n    scaler.update()",
).replace("    loss = ", AUTOCAST.format("dtype=torch.float16"))
LATE = GAN.replace("range(3)", "range(8)").replace("    first.step()", "    first.step() if step > 4 else None")
EARLY_IN_FLOAT32 = (
    HEAD
    + """
table = torch.zeros(3, requires_grad=True)
net = net.to(torch.bfloat16)
early, late = torch.optim.SGD([table], lr=0.1), torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100):
    for optimizer in (early, late):
        optimizer.zero_grad()
    loss = ((net(inputs.bfloat16()).float() - targets) ** 2).mean() + table.sum()
    loss.backward()
    early.step()
    if step > 2:
        late.step()
"""
)


@pytest.mark.parametrize(
    ("text", "words", "verdict"),
    [
        (SCALED, ("amp=o1", "amp.dtype=float16", "train.precision=script"), "proved"),
        (LATE, ("amp=o1",), "proved"),
        (EARLY_IN_FLOAT32, ("amp=o3", "train.precision=script"), "proved"),
        (GAN, ("amp=o1",), "proved"),
        (
            PLAIN.replace("optimizer =", "net = torch.compile(net, backend='aot_eager')\noptimizer ="),
            ("amp=o1",),
            "proved",
        ),
        (PLAIN.replace("    loss = ", AUTOCAST.format("enabled=False")), ("amp=o1",), "contradicted"),
    ],
    ids=[
        "first steps overflow",
        "an optimizer steps later",
        "an optimizer in float32 steps first",
        "a GAN",
        "compiled",
        "autocast off inside",
    ],
)
def test_the_verdict_is_that_of_the_computation(run, text, words, verdict):
    ended = run(text, *words)
    assert (ended.code, ended.verdict) == (verdict != "proved", verdict), ended.result["reason"]
    if text is SCALED:
        assert ended.result["updates"]["applied"] < ended.result["updates"]["attempted"], "some overflowed"


BY_PRECISION = OWN.replace(
    "from_env()", "of(Amp(level='o1', dtype='float16'), LossScale(init=1e30), torch.device('cpu'))"
)


@pytest.mark.parametrize(
    "text",
    [
        SCALED,
        SCALED.replace("SGD(net.parameters(), lr=0.01)", "Adam(net.parameters(), fused=True)"),
        f"from recipes.precision.levels import Amp, LossScale\n{BY_PRECISION}",
    ],
    ids=["by GradScaler", "by a fused optimizer", "by Precision"],
)
def test_a_script_whose_steps_were_all_skipped_proves_nothing(run, text):
    text = text.replace("2.0**30", "1e30").replace("range(30)", "range(5)")
    ended = run(text, "amp=o1", "amp.dtype=float16", "train.precision=script")
    assert ended.result["updates"] == {"attempted": 5, "applied": 0}, ended.err
    assert (ended.code, ended.verdict) == (1, "unknown")
    assert "no weight was updated: all 5 steps overflowed and were skipped" in ended.out


def test_a_script_without_a_model_proves_nothing_and_fails_unless_that_is_allowed(run):
    ended = run("print('no model here')", "amp=o1")
    assert (ended.code, ended.verdict) == (1, "unknown")
    assert "require_proof=false lets that pass" in ended.err
    assert "train.processes=N starts N" in ended.result["observed"]["why"]
    assert run("print('no model here')", "amp=o1", "require_proof=false").code == 0


def test_arguments_reach_the_script_untouched_and_its_folder_is_its_import_path(run, tmp_path):
    passed = ["--lr", "0.1", "data/", "amp=o9", "${x}", 'it\'s "quoted"', "--", ""]
    text = "import json, os, sys\njson.dump([sys.argv, sys.path[0], os.getcwd(), __name__], open('argv.json', 'w'))"
    workdir = tmp_path / "work"
    assert run(text, "amp=o0", "require_proof=false", f"workdir={workdir}", passed=passed).code == 0
    argv, path, cwd, name = json.loads((workdir / "argv.json").read_text())
    assert argv == [str(tmp_path / "train.py"), *passed]
    assert (path, cwd, name) == (str(tmp_path), str(workdir), "__main__")


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("import sys; sys.exit('no data')", 1, "the script ended with exit code 1"),
        ("def f():\n    raise ValueError('no data')\nf()\n", 1, "ValueError: no data"),
        ("this is not", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_the_scripts_own_and_a_traceback_begins_in_it(run, tmp_path, text, code, reason):
    ended = run(text, "amp=o0")
    assert (ended.code, ended.result["status"]) == (code, "failed")
    assert reason in ended.result["reason"]
    if reason.startswith("ValueError"):
        assert ended.err.count("File ") == 2 and f'File "{tmp_path}/train.py", line 3' in ended.err


def test_a_script_that_ends_within_its_first_step_ends_as_it_would_alone(tmp_path):
    """Python itself crashes at its end if torch still records the step."""
    (tmp_path / "train.py").write_text(HEAD + "net(inputs)\nraise ValueError('no data')\n")
    words = [f"script={tmp_path}/train.py", f"run={tmp_path}/run", "amp=o1", "device=cpu"]
    ended = subprocess.run([sys.executable, "-m", "recipes.torch_.script", *words], env=environment())
    assert ended.returncode == 1


@pytest.mark.parametrize("end", ["", "sys.exit()"])
def test_the_variables_of_a_script_live_as_long_as_they_do_alone(tmp_path, end):
    """Freed at once, a model in DDP may deadlock with gloo's thread."""
    text = "import functools, sys\nlast = type('Last', (), {'__del__': functools.partial(print, 'freed')})()\n"
    (tmp_path / "train.py").write_text(text + end)
    words = [f"script={tmp_path}/train.py", "amp=o1", "device=cpu", "require_proof=false"]
    command = [sys.executable, "-m", "recipes.torch_.script", *words]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("freed\n"), ended


@pytest.mark.parametrize("end", ["raise OSError('connection closed by peer')", "pass"])
def test_an_error_after_another_rank_has_failed_is_not_the_reason_of_the_failure(run, end):
    text = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{end}\n"
    assert run(text, "amp=o0", environ={"RANK": "1", "WORLD_SIZE": "2"}).code == 3
    ended = run(text, "amp=o0", environ={"RANK": "0", "WORLD_SIZE": "2"})
    assert (ended.code, ended.result["status"]) == (1, "failed")
    assert ended.result["reason"] == "on rank 1, the script ended with exit code 3"
    assert f"script: {ended.result['reason']}" in ended.err


def test_a_missing_script_is_refused(tmp_path, capsys):
    for words, message in (([f"script={tmp_path}/none.py"], "No such file"), ([], "script=FILE is missing")):
        assert shared.main("torch", ["amp=o1", *words], TorchWrapper) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("liar", "verdict"), [("9", "proved"), ("1", "contradicted")])
def test_all_ranks_are_judged(tmp_path, liar, verdict):
    """One rank switches autocast off, which the first one reports."""
    text = PLAIN.replace(
        "optimizer =",
        "import os\nfrom torch import distributed\ndistributed.init_process_group('gloo')\n"
        "net = nn.parallel.DistributedDataParallel(net)\n"
        "if os.environ['RANK'] == sys.argv[1]: torch.set_autocast_enabled('cpu', False)\noptimizer =",
        1,
    )
    ended = fork(tmp_path, text, "amp=o1", passed=[liar], ranks=2)
    assert (ended.verdict, ended.result["world_size"]) == (verdict, 2), ended.err
    assert ended.code == (verdict != "proved")
    if verdict == "contradicted":
        assert "on rank 1" in ended.result["observed"]["why"]
        assert ended.result["reason"].startswith("on rank 1, what ran was not amp=o1: step 1 on rank 1: ")
        assert ended.result["steps"] < 5, "the other rank does not wait for the one that ended"


SHARDED = """
import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
fully_shard(net, mesh=init_device_mesh("cpu", (1,)), mp_policy=half)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
with torch.no_grad():
    net(torch.randn(8, 32))
net(torch.randn(8, 32)).float().square().mean().backward()
optimizer.step()
with torch.no_grad():
    net(torch.randn(8, 32))  # parameters stay gathered
"""


@pytest.mark.parametrize(("amp", "verdict"), [("o1", "proved"), ("o2", "contradicted")])
def test_parameters_that_an_evaluation_left_gathered_are_judged_as_the_optimizer_has_them(tmp_path, amp, verdict):
    ended = fork(tmp_path, SHARDED, f"amp={amp}", "train.precision=script")
    assert ended.verdict == verdict, ended.result["observed"]
