"""Work that no dispatcher sees: its results are found by the tensors that nothing seen wrote."""

from __future__ import annotations

import textwrap

import pytest

from tests.amp_launcher.torch.scripts import in_process
from tests.amp_launcher.wrapped_scripts import run_script

assert run_script

HEAD = """
import ctypes
import numpy
import torch
from torch import nn
torch.manual_seed(0)
random = numpy.random.default_rng(0)
old = torch.zeros(8, 64)
old_array = old.numpy()

def product(inputs, weight):
    left, right = (tensor.detach().float().numpy() for tensor in (inputs, weight))
    return left @ right.T

class Outside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        FORWARD
    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        inputs, weight = inputs.float(), weight.float()
        BACKWARD

class Layer(nn.Linear):
    def forward(self, inputs):
        return LAYER

net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), Layer(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
images = random.standard_normal((100, 32), dtype=numpy.float32)
kept = []
for step in range(3):
    chosen = random.integers(0, 100, 8)
    inputs = torch.from_numpy(images[chosen])
    targets = torch.tensor(images[chosen].sum(1, keepdims=True))
    BEFORE
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=HALF):
        outputs = net(inputs)
    loss = (outputs.float() - targets).square().mean()
    loss.backward()
    BETWEEN
    optimizer.step()
    AFTER
"""
SEEN = """kind = torch.bfloat16 if HALF else torch.float32
inputs, weight, gradient = inputs.to(kind), weight.to(kind), gradient.to(kind)
return (gradient @ weight).to(gradient.dtype), (gradient.T @ inputs).float()"""


def script(forward="return inputs @ weight.T", backward=SEEN, layer="", before="", between="", after="", half=False):
    layer = layer or "Outside.apply(inputs, self.weight)"
    text = HEAD.replace("LAYER", layer)
    parts = {"FORWARD": (forward, 8), "BACKWARD": (backward, 8)}
    parts |= {"BEFORE": (before, 4), "BETWEEN": (between, 4), "AFTER": (after, 4)}
    for name, (lines, indent) in parts.items():
        text = text.replace(name, textwrap.indent(lines, " " * indent).lstrip(), 1)
    return text.replace("HALF", str(half))


@pytest.fixture
def run(run_script, tmp_path):
    start = in_process(run_script, tmp_path)
    return lambda half=False, **parts: start(
        script(half=half, **parts), "amp=o1" if half else "amp=o0", "train.precision=script", "require_proof=false"
    )


CTYPES = """result = torch.empty(8, 64)
ctypes.memmove(result.data_ptr(), numpy.ascontiguousarray(product(inputs, weight)).ctypes.data, result.nbytes)
return result"""
WORKSPACE = """result = torch.empty(8, 64)
result.numpy()[:] = product(inputs, weight)
return result.clone()"""
INTEGERS = WORKSPACE.replace("64)", "64, dtype=torch.int32)").replace("clone", "float")
ZEROS = WORKSPACE.replace("empty", "zeros").removesuffix(".clone()")
RESULT = ZEROS.replace("torch.zeros(8, 64)", "(inputs @ weight.T).float()").replace(
    "result.numpy", "result.detach().numpy"
)
IN_LAYER = """(result := torch.zeros(8, 64), result.numpy().__setitem__(slice(None), product(inputs, self.weight)),
    result + 0 * super().forward(inputs))[-1]"""
OLDER = "old_array[:] = product(inputs, weight)\nreturn old"


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"forward": "return torch.from_numpy(product(inputs, weight))"}, "a tensor from outside torch in Outside"),
        ({"forward": "return torch.tensor(product(inputs, weight).tolist()).to(inputs.dtype)"}, "in Outside"),
        (
            {"forward": "return torch.frombuffer(product(inputs, weight).tobytes(), dtype=torch.float32).view(8, 64)"},
            "Outside",
        ),
        ({"forward": "return torch.from_dlpack(product(inputs, weight))"}, "Outside"),
        ({"forward": CTYPES}, "the output of Outside"),
        ({"forward": WORKSPACE}, "memory that Outside read as it was allocated"),
        ({"forward": INTEGERS}, "memory that Outside read as it was allocated"),
        ({"forward": ZEROS}, "memory of Outside that was written outside torch"),
        ({"forward": CTYPES.replace("empty", "zeros")}, "memory of Outside"),
        ({"forward": RESULT}, "memory of Outside"),
        ({"layer": IN_LAYER}, "memory that was written outside torch"),
        ({"forward": OLDER}, "the output of Outside"),
        ({"forward": OLDER + ".clone()"}, "what Outside used"),
        (
            {"backward": SEEN.replace("(gradient.T @ inputs)", "torch.from_numpy(product(gradient.T, inputs.T))")},
            "a tensor from outside torch in Outside",
        ),
        (
            {"layer": "torch.from_numpy(product(inputs, self.weight)) + 0 * super().forward(inputs)"},
            "in forward, at train.py:",
        ),
        (
            {"between": "net[0].weight.grad = torch.from_numpy(net[0].weight.grad.numpy() @ numpy.eye(32, dtype='f'))"},
            "a gradient from outside torch",
        ),
        (
            {"between": "net[0].weight.grad.numpy()[:] = net[0].weight.grad.numpy() @ numpy.eye(32, dtype='f') * 2"},
            "a gradient that was written outside torch",
        ),
    ],
    ids="from_numpy lists frombuffer dlpack ctypes workspace integers zeros zeros-ctypes result layer older copy "
    "backward no-function gradient gradient-in-place".split(),
)
def test_what_is_computed_outside_torch_is_unknown(run, parts, named):
    ended = run(half="layer" not in parts, **parts)  # at o0 and at o1, where it is found alike
    assert (ended.code, ended.verdict) == (0, "unknown"), ended.result["observed"]
    assert named in ended.result["observed"]["why"]


def test_an_autograd_function_without_a_context_in_its_forward_is_named(run_script, tmp_path):
    """From torch 2.14 on, the caller of a forward is no frame of Python's stack."""
    text = script("return torch.from_numpy(product(inputs, weight))").replace(
        "def forward(ctx, inputs", "def forward(inputs"
    )
    text = text.replace("    ctx.save_for_backward(inputs, weight)\n", "")
    setup = "    setup_context = staticmethod(lambda ctx, inputs, output: ctx.save_for_backward(*inputs))\n"
    text = text.replace(
        "class Outside(torch.autograd.Function):\n", f"class Outside(torch.autograd.Function):\n{setup}"
    )
    words = ("amp=o0", "train.precision=script", "require_proof=false")
    ended = in_process(run_script, tmp_path)(text, *words)
    assert (ended.code, ended.verdict) == (0, "unknown"), ended.err
    assert "a tensor from outside torch in Outside" in ended.result["observed"]["why"]


@pytest.mark.parametrize("base", ["", "class Layer(Layer): pass"])
def test_transformer_engine_is_named_as_what_cannot_be_seen(run, base):
    """A layer as it has them: its product is the library's own call, which no dispatcher sees."""
    named = f"Layer.__module__ = 'transformer_engine.pytorch.module.linear'\n{base}\nnet[2] = Layer(64, 64, bias=False)"
    before = (
        f"if step == 0:\n{textwrap.indent(named, '    ')}\n    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)"
    )
    ended = run(True, forward=CTYPES, before=before)
    assert (ended.code, ended.verdict) == (0, "unknown"), ended.result["observed"]
    why = "Layer of TransformerEngine, whose products torch doesn't see, can't be counted (1 call)"
    assert why in ended.result["observed"]["why"]


ACTION = """with torch.no_grad():
    action = net(inputs).float().numpy()
inputs = torch.tensor(images[:8] + action)"""
PACKED = "nn.utils.rnn.pack_padded_sequence(inputs[..., None], torch.full((8,), 5), batch_first=True)"
LENGTHS = f"super().forward(inputs)[nn.utils.rnn.pad_packed_sequence({PACKED}, batch_first=True)[1] - 1]"


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"after": "kept.append(outputs.detach().float().numpy()); print(loss.item(), net[0].weight.tolist()[0])"},
        {"between": "kept.append(outputs.detach().float().numpy())"},
        {"layer": "kept.append(inputs.detach().numpy()) or super().forward(inputs)"},
        {"before": "old.zero_()[:, :32].numpy()[:] = inputs\ninputs = old[:, :32]"},
        {"before": "inputs.requires_grad_()\ninputs = inputs.view(8, 32)"},
        {"before": ACTION},
        {"before": "inputs = torch.cat([torch.empty(0, 32), inputs + torch.empty_like(inputs).normal_()])"},
        {"forward": "return torch.baddbmm(torch.empty(1, 8, 64).to(inputs), inputs[None], weight.T[None], beta=0)[0]"},
        {"forward": "return inputs @ weight.T * torch.tensor(2.0)"},
        {"layer": "nn.functional.linear(inputs, self.weight) * torch.tensor([1.0, 2.0] * 32)"},
        {"layer": LENGTHS},
    ],
    ids="seen metrics-after metrics-before metrics-inside buffer input-gradients action noise beta=0 number "
    "constant lengths".split(),
)
def test_data_and_what_is_logged_are_no_work_outside_torch(run, parts):
    ended = run(**parts)
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["observed"]
