"""What a user's script in torch computes without gradients: an evaluation is not judged, what training uses is."""

from __future__ import annotations

import shutil

import pytest
import torch

from amp_launcher.torch.observe import compiled
from tests.amp_launcher.torch.scripts import HEAD, fork, in_process
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

TRAINING = """
import copy
from torch.utils.checkpoint import checkpoint

class Float32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.t()
    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = (saved.bfloat16() for saved in ctx.saved_tensors)
        return (gradient.bfloat16() @ weight).float(), (gradient.bfloat16().t() @ inputs).float()

class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)
    def forward(self, hidden):
        with torch.autocast("cpu", enabled=False):
            return Float32.apply(hidden.float(), self.weight)

teacher, position = nn.Linear(32, 64), torch.randn(1, 1)
frozen = copy.deepcopy(teacher).requires_grad_(False)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), MIDDLE, nn.ReLU(), nn.Linear(64, 64))
average, total = copy.deepcopy(net), torch.zeros(())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    inputs = torch.randn(64, 32)
    goal = 0.0
    BEFORE
    with torch.autocast("cpu", torch.bfloat16):
        outputs = net(inputs).float()
    loss = LOSS
    loss.backward()
    BETWEEN
    optimizer.step()
    AFTER
"""


def training(middle="nn.Linear(64, 64)", before="", loss="(outputs - goal).square().mean()", between="", after=""):
    """The text of a script that trains under autocast and runs the rest without it."""
    text = TRAINING.replace("MIDDLE", middle).replace("LOSS", loss)
    for name, lines in (("BEFORE", before), ("BETWEEN", between), ("AFTER", after)):
        text = text.replace(name, lines.replace("\n", "\n    "))
    return HEAD + text


@pytest.fixture
def run(run_script, tmp_path):
    start = in_process(run_script, tmp_path)
    return lambda text: start(text, "amp=o1", "train.precision=script")


TEACHER = "with torch.no_grad():\n    goal = teacher(inputs) + teacher(inputs)"
VALIDATION = """net.eval()
with torch.no_grad():
    loss = net(inputs).square().mean()
total = total + loss
print("so far", total.item() / (step + 1))
net.train()"""
OF_A_COPY = """with torch.inference_mode():
    average.eval()
    print([average(inputs).square().mean().item() for _ in range(9)])"""
BESIDE_A_PRODUCT_THAT_TRAINING_USES = """turned = inputs * 1.0
with torch.no_grad():
    turned = turned * (position @ position)
inputs = turned"""


@pytest.mark.parametrize(
    "parts",
    [
        {"after": VALIDATION},
        {"between": VALIDATION.replace("net.", "average.").replace("net(", "average(")},
        {"after": OF_A_COPY},
        {"before": BESIDE_A_PRODUCT_THAT_TRAINING_USES, "after": OF_A_COPY},
        {"before": TEACHER},
        {"before": "goal = frozen(frozen(inputs)[:, :32])", "between": VALIDATION},
        {"loss": "nn.functional.kl_div(outputs.log_softmax(1), frozen(inputs).softmax(1)) * frozen(inputs).mean()"},
    ],
    ids="model before-step copy before-used teacher frozen-teacher reward".split(),
)
def test_what_no_optimizer_steps_and_only_a_loss_uses_is_not_judged(run, parts):
    ended = run(training(**parts))
    assert (ended.code, ended.verdict) == (0, "proved"), ended.err


@pytest.mark.skipif(bool(compiled.missing()), reason="this torch's compiled code can't be read")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.usefixtures("calls_for_kernels")
@pytest.mark.parametrize(
    ("parts", "verdict"),
    [({"after": VALIDATION}, "proved"), ({"before": "with torch.no_grad():\n    goal = net(inputs)"}, "contradicted")],
    ids=["an evaluation", "a teacher"],
)
def test_compiled_code_without_gradients_is_judged_where_training_uses_it(run, parts, verdict):
    torch._dynamo.reset()
    ended = run(training(**parts).replace("optimizer =", "net = torch.compile(net)\noptimizer ="))
    assert ended.verdict == verdict, ended.result["observed"]


FROZEN = """with torch.no_grad():
    hidden = torch.cat([teacher(inputs), teacher(inputs)], 1)
inputs = hidden[:, :32].relu() * 2"""
BY_HAND = """with torch.no_grad():
    net[0].weight.grad.copy_((inputs.t() @ torch.randn(64, 64)).t())"""


@pytest.mark.parametrize(
    "parts",
    [
        {"before": FROZEN},
        {"before": FROZEN.replace("with torch.no_grad():", "if True:").replace("teacher", "frozen")},
        {"before": TEACHER + "\ninputs = goal[:, :32]"},
        {"before": TEACHER.replace("teacher", "net[0]")},
        {"before": TEACHER.replace("teacher", "average[0]"), "loss": "(net[4](outputs + goal)).mean()"},
        {"between": BY_HAND},
        {"middle": "Calls()", "loss": "outputs.mean()"},
        {"middle": "nn.Identity()", "loss": "Float32.apply(outputs, torch.randn(64, 64)).sum()"},
    ],
    ids="frozen-part frozen-weights input model-itself in-the-middle gradient-by-hand function last".split(),
)
def test_what_training_uses_is_judged_although_it_ran_without_gradients(run, parts):
    ended = run(training(**parts))
    assert (ended.code, ended.verdict) == (1, "contradicted"), ended.result["observed"]
    assert "in float32" in ended.result["observed"]["why"]


@pytest.mark.parametrize(("enabled", "verdict"), [(True, "proved"), (False, "contradicted")])
def test_the_first_forward_of_a_reentrant_checkpoint_is_judged(run, enabled, verdict):
    """It has no gradients; the second one, in backward, has."""
    loss = "checkpoint(block, outputs, use_reentrant=True).mean()"
    before = f"""middle = net[2]
def block(hidden):
    with torch.autocast("cpu", torch.bfloat16, enabled=torch.is_grad_enabled() or {enabled}):
        return middle(middle(middle(hidden)))"""
    ended = run(training(before=before, loss=loss))
    assert ended.verdict == verdict, ended.result["observed"]


def test_a_script_that_trains_without_gradients_is_never_proved(run):
    ended = run(
        HEAD
        + """
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(3):
    for parameter in net.parameters():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            before = net(inputs).square().mean()
            parameter += 1e-3
            parameter.grad = (net(inputs).square().mean() - before) * torch.ones_like(parameter)
            parameter -= 1e-3
    optimizer.step()
"""
    )
    assert (ended.code, ended.verdict) == (0, "unknown"), ended.result["observed"]


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
