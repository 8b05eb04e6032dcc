"""Compiled models compute in the dtypes that eager ones do, backward too."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.nn import functional

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.precision import Precision
from amp_launcher.torch.precision.compiler import make_compilable
from amp_launcher.torch.precision.operation_lists import OperationLists
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import CPU, HALVES, UNSCALED, same

HAS_SWITCH = hasattr(torch._functorch.config, "backward_pass_autocast")
COMPILES_LISTS = pytest.mark.skipif(not HAS_SWITCH, reason="refused with this torch")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Nothing compiled before, and the switch as torch has it."""
    torch._dynamo.reset()
    with torch._functorch.config.patch(backward_pass_autocast="same_as_forward") if HAS_SWITCH else nullcontext():
        yield
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(16, 16)
        self.two = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, inputs):
        hidden = functional.relu(self.norm(self.one(inputs)))
        product = torch.matmul(hidden, self.two.weight)
        return hidden, product, product.softmax(-1), product + 1


def run(amp, compiled, backward=None):
    """Results and gradients; `backward` is a way to compile backwards other than ours."""
    torch.manual_seed(0)
    precision = Precision(amp, loss_scale=UNSCALED, device=CPU)
    model = precision.prepare(Model())
    if backward:
        torch._functorch.config.backward_pass_autocast = backward
    call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    with precision:
        results = call(torch.linspace(-1, 1, 64).reshape(4, 16))
    precision.backward(sum(result.float().square().sum() for result in results))
    return [*results, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]


def is_as_eager(amp, **options):
    eager, compiled = run(amp, compiled=False), run(amp, compiled=True, **options)
    return same(eager, compiled) and [one.dtype for one in eager] == [other.dtype for other in compiled]


@COMPILES_LISTS
@pytest.mark.parametrize(("level", "dtype"), [("o1", "float16"), ("o1", "bfloat16"), ("o2", "bfloat16")])
@pytest.mark.parametrize(
    "chosen",
    [
        {"deny": ("linear", "elementwise_add")},
        {"deny": ("matmul",), "allow": ("relu", "layer_norm")},
        {"keep_fp32": ("one",), "deny": ("matmul",)},
    ],
    ids=str,
)
def test_a_fully_compiled_model_is_its_eager_self_bit_for_bit(level, dtype, chosen):
    assert is_as_eager(Amp(level=level, dtype=dtype, **chosen))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_every_level_compiles_as_a_whole_without_lists(level, dtype):
    assert is_as_eager(Amp(level=level, dtype=dtype))


@COMPILES_LISTS
def test_modules_kept_in_float32_compile_as_a_whole_at_o3():
    assert is_as_eager(Amp(level="o3", keep_fp32=("norm", "one")))


@COMPILES_LISTS
def test_the_switch_is_needed_as_the_compiler_runs_backward_under_autocast():
    """If this fails, torch's default has become "off" and setting the switch can go."""
    assert not is_as_eager(Amp(level="o1", deny=("linear",)), backward="same_as_forward")


@COMPILES_LISTS
def test_a_model_compiled_under_one_list_is_compiled_anew_under_another():
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    dtypes = []
    for deny in ((), ("relu",), ("relu", "matmul"), ()):
        with torch.autocast("cpu", dtype=torch.bfloat16), OperationLists((), deny, torch.bfloat16, "cpu"):
            dtypes.append([result.dtype for result in compiled(torch.ones(4, 16))[:2]])
    half, single = torch.bfloat16, torch.float32
    assert dtypes == [[half, half], [single, half], [single, single], [half, half]]


@pytest.mark.parametrize("chosen", [{"deny": ("linear",)}, {"allow": ("softmax",)}, {"keep_fp32": ("one",)}], ids=str)
@pytest.mark.parametrize(
    ("version", "has_switch", "refused"),
    [
        ("2.4.1", False, {"deny", "allow", "keep_fp32"}),
        ("2.6.0", False, {"deny", "keep_fp32"}),
        ("2.8.0a0+34c6371d24.nv25.8", True, set()),
    ],
)
def test_what_an_older_compiler_would_get_wrong_is_refused(monkeypatch, version, has_switch, refused, chosen):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    switches = SimpleNamespace(backward_pass_autocast="same_as_forward") if has_switch else SimpleNamespace()
    monkeypatch.setattr("amp_launcher.torch.precision.compiler.functorch_config", switches)
    make_compilable(Amp(level="o1"), compile=True)
    (key,) = chosen
    if key in refused:
        with pytest.raises(SettingsError, match=rf"amp\.{key} with compile=true: the compiler of torch {version[:3]}"):
            make_compilable(Amp(level="o1", **chosen), compile=True)
    else:
        make_compilable(Amp(level="o1", **chosen), compile=True)
        assert vars(switches) == ({"backward_pass_autocast": "off"} if has_switch else {})
