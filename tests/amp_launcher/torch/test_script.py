"""The wrapper around a user's script in torch: run as a user's file is run, in this process where one is enough."""

from __future__ import annotations

import shutil

import pytest
import torch

from amp_launcher.precision.levels import Amp
from amp_launcher.typed import plain
from tests.amp_launcher.torch.scripts import HEAD, PLAIN, fork, in_process, with_autocast
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

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


@pytest.fixture
def run(run_script, tmp_path):
    return in_process(run_script, tmp_path)


CAST = """
import torch
from torch import nn
from amp_launcher.torch import Precision
def net():
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.ModuleDict({"body": body, "head": nn.Linear(64, 16)})
class Around(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
    def forward(self, inputs):
        return self.model["head"](self.model["body"](inputs))
precision = Precision()
nets = [precision.prepare(net()) for _ in range(COUNT)]
optimizers = [precision.prepare(torch.optim.SGD(model.parameters(), lr=0.1)) for model in nets]
for step in range(3):
    with precision:
        inputs = torch.ones(16, 32)
        loss = sum(CALL.square().mean() for model in nets)
    precision.backward(loss)
    for optimizer in optimizers:
        precision.step(optimizer)
        optimizer.zero_grad()
"""


BY_LAYERS = 'model["head"](model["body"](inputs))'


@pytest.mark.parametrize("asked", [Amp(level="o2", keep_fp32=("head",)), Amp(level="o2", gemm="fp8-tensorwise")])
@pytest.mark.parametrize("call", [BY_LAYERS, "Around(model)(inputs)"])
@pytest.mark.parametrize("count", [1, 2])
def test_layers_are_known_however_the_script_calls_the_model(run, asked, call, count):
    word = "amp.keep_fp32=[head]" if asked.keep_fp32 else f"amp.gemm={asked.gemm}"
    text = CAST.replace("CALL", call).replace("COUNT", str(count))
    ended = run(text, "amp=o2", word, asked=plain(asked))
    assert (ended.code, ended.verdict) == (0, "proved"), ended
    kept = "kept in float32 as requested: linear in float32"
    assert (kept if asked.keep_fp32 else f"of {2 * count} linear layers") in ended.result["observed"]["why"]


def test_a_script_that_knows_nothing_of_precision_is_proved_at_o1_and_at_o0_and_learns_alike(run, tmp_path):
    half = run(PLAIN, "amp=o1")
    shutil.rmtree(tmp_path / "run")  # a further attempt would be judged with the first
    single = run(PLAIN, "amp=o0")
    assert (half.code, half.result["status"], half.result["mechanism"]) == (0, "done", "autocast_around")
    expected = {"verdict": "proved", "dtype": "bfloat16", "half_flop_share": 1.0, "step_flops": 548_864}
    assert {key: half.result["observed"][key] for key in expected} == expected
    assert half.result["steps"] == 30
    assert not torch.is_autocast_enabled("cpu")
    assert (single.code, single.verdict, single.result["observed"]["half_flop_share"]) == (0, "proved", 0.0)
    losses = [float(ended.out.split("ended at ")[1].split()[0]) for ended in (half, single)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] < 20, "36 at first: with autocast's cache every forward would see the first weights"


def test_a_script_that_asks_in_a_helper_is_noticed_while_it_runs(run, tmp_path):
    (tmp_path / "asking_helper.py").write_text("from amp_launcher.torch import Precision as make\n")
    text = CAST.replace("Precision()", "make()").replace("CALL", BY_LAYERS).replace("COUNT", "1")
    text = text.replace("from amp_launcher.torch import Precision", "from asking_helper import make")
    ended = run(text, "amp=o1", asked={"level": "o1"})
    assert (ended.code, ended.result["mechanism"], ended.verdict) == (0, "autocast", "proved")


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
)
SCALED = with_autocast("dtype=torch.float16", SCALED)
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


SCRIPT = "train.precision=script"
VERDICTS = {
    "first steps overflow": (SCALED, ("amp=o1", "amp.dtype=float16", SCRIPT), "proved"),
    "an optimizer steps later": (LATE, ("amp=o1",), "proved"),
    "an optimizer in float32 steps first": (EARLY_IN_FLOAT32, ("amp=o3", SCRIPT), "proved"),
    "a GAN": (GAN, ("amp=o1",), "proved"),
    "compiled": (
        PLAIN.replace("optimizer =", "net = torch.compile(net, backend='aot_eager')\noptimizer ="),
        ("amp=o1",),
        "proved",
    ),
    "its own autocast": (with_autocast("dtype=torch.bfloat16"), ("amp=o1", SCRIPT), "proved"),
    "its own autocast in early steps": (
        with_autocast("dtype=torch.bfloat16, enabled=step < 5"),
        ("amp=o1", SCRIPT),
        "contradicted",
    ),
    "autocast off inside": (with_autocast("enabled=False"), ("amp=o1",), "contradicted"),
}


@pytest.mark.parametrize(("text", "words", "verdict"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_is_that_of_the_computation(run, text, words, verdict):
    ended = run(text, *words)
    assert (ended.code, ended.verdict) == (verdict != "proved", verdict), ended.result["reason"]
    assert ended.result["mechanism"] == ("script" if SCRIPT in words else "autocast_around")
    if text is SCALED:
        assert ended.result["updates"]["applied"] < ended.result["updates"]["attempted"], "some overflowed"
    if "step < 5" in text:
        assert "step 19" in ended.result["observed"]["why"]


BY_PRECISION = (
    CAST.replace("CALL", BY_LAYERS)
    .replace("COUNT", "1")
    .replace("range(3)", "range(5)")
    .replace("Precision()", "Precision('fp16-mixed', loss_scale=LossScale(init=1e30), device='cpu')")
)


@pytest.mark.parametrize(
    "text",
    [
        SCALED,
        SCALED.replace("SGD(net.parameters(), lr=0.01)", "Adam(net.parameters(), fused=True)"),
        f"from amp_launcher.precision.levels import LossScale\n{BY_PRECISION}",
    ],
    ids=["by GradScaler", "by a fused optimizer", "by Precision"],
)
def test_a_script_whose_steps_were_all_skipped_proves_nothing(run, text):
    text = text.replace("2.0**30", "1e30").replace("range(30)", "range(5)")
    ended = run(text, "amp=o1", "amp.dtype=float16", "train.precision=script")
    assert ended.result["updates"] == {"attempted": 5, "applied": 0}, ended.err
    assert (ended.code, ended.verdict) == (0, "unknown")
    assert "no weight was updated: all 5 steps overflowed and were skipped" in ended.out


def test_an_attempt_that_a_later_one_has_taken_over_says_so_in_a_line(run, tmp_path):
    ended = run(f"import os; os.makedirs({str(tmp_path / 'run/attempts/2')!r})", "amp=o1")
    assert (ended.code, ended.result) == (1, {})
    assert ended.err.startswith("script: attempt 1 ends without another word: ") and ended.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("liar", "verdict"), [("9", "proved"), ("1", "contradicted")])
def test_all_ranks_are_judged(tmp_path, liar, verdict):
    """One rank switches autocast off, which the first one reports."""
    text = PLAIN.replace(
        "optimizer =",
        "import os\nfrom torch import distributed\ndistributed.init_process_group('gloo')\n"
        "net = nn.parallel.DistributedDataParallel(net)\n"
        "if os.environ['RANK'] == sys.argv[1]: torch.autocast('cpu', enabled=False).__enter__()\noptimizer =",
        1,
    )
    ended = fork(tmp_path, text, "amp=o1", passed=[liar], ranks=2)
    assert (ended.verdict, ended.result["world_size"]) == (verdict, 2), ended.err
    assert ended.code == (verdict != "proved")
    if verdict == "contradicted":
        assert "on rank 1" in ended.result["observed"]["why"]
        assert ended.result["reason"].startswith("on rank 1, what ran was not amp=o1: step 1 on rank 1: ")
        assert ended.result["steps"] < 5, "the other rank does not wait for the one that ended"
