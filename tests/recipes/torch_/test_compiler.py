"""Compiled models compute in the dtypes that eager ones do, backward too."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.nn import functional

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.precision import Precision
from recipes.torch_.precision.compiler import make_compilable
from recipes.torch_.precision.operation_lists import OperationLists
from recipes.typed import SettingsError

HAS_SWITCH = hasattr(torch._functorch.config, "backward_pass_autocast")
COMPILES_LISTS = pytest.mark.skipif(not HAS_SWITCH, reason="refused with this torch")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Nothing compiled before, and the switch as it was afterwards."""
    before = getattr(torch._functorch.config, "backward_pass_autocast", None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    if HAS_SWITCH:
        torch._functorch.config.backward_pass_autocast = before


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


def run(amp, compiled, told=True):
    """Results and gradients. `told` is whether the precision knows that the model is going to be compiled."""
    torch.manual_seed(0)
    precision = Precision.of(amp, LossScale(mode="none"), torch.device("cpu"), compile=compiled and told)
    model = precision.cast(Model())
    call = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    with precision.forward():
        results = call(precision.input(torch.linspace(-1, 1, 64).reshape(4, 16)))
    precision.backward(sum(each.float().square().sum() for each in results))
    return [*results, *(each.grad for each in model.parameters() if each.grad is not None)]


def same(one, two):
    return all(left.dtype == right.dtype and torch.equal(left, right) for left, right in zip(one, two, strict=True))


@COMPILES_LISTS
@pytest.mark.parametrize(("level", "dtype"), [("o1", "float16"), ("o1", "bfloat16"), ("o2", "bfloat16")])
@pytest.mark.parametrize(
    "chosen",
    [
        {"deny": ("linear", "elementwise_add")},
        {"deny": ("matmul",), "allow": ("relu", "layer_norm")},
        {"deny": ("linear", "matmul")},
        {"keep_fp32": ("one",)},
        {"keep_fp32": ("one",), "deny": ("matmul",)},
    ],
    ids=str,
)
def test_a_fully_compiled_model_is_its_eager_self_bit_for_bit(level, dtype, chosen):
    amp = Amp(level=level, dtype=dtype, **chosen)
    assert same(run(amp, compiled=False), run(amp, compiled=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_every_level_compiles_as_a_whole_without_lists(level, dtype):
    amp = Amp(level=level, dtype=dtype)
    assert same(run(amp, compiled=False), run(amp, compiled=True))


@COMPILES_LISTS
def test_modules_kept_in_float32_compile_as_a_whole_at_o3():
    amp = Amp(level="o3", keep_fp32=("norm", "one"))
    assert same(run(amp, compiled=False), run(amp, compiled=True))


@COMPILES_LISTS
def test_the_switch_is_needed_as_the_compiler_runs_backward_under_autocast():
    """If this fails, torch's default has become "off" and setting the switch can go."""
    amp = Amp(level="o1", deny=("linear",))
    assert not same(run(amp, compiled=False), run(amp, compiled=True, told=False))


@COMPILES_LISTS
def test_a_model_compiled_under_one_list_is_compiled_anew_under_another():
    compiled = torch.compile(Model(), fullgraph=True, backend="aot_eager")
    dtypes = []
    for deny in ((), ("relu",), ("relu", "matmul"), ()):
        with torch.autocast("cpu", dtype=torch.bfloat16), OperationLists((), deny, torch.bfloat16, "cpu"):
            dtypes.append([each.dtype for each in compiled(torch.ones(4, 16))[:2]])
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
    monkeypatch.setattr("recipes.torch_.precision.compiler.functorch_config", switches)
    make_compilable(Amp(level="o1"))
    (key,) = chosen
    if key in refused:
        with pytest.raises(SettingsError, match=rf"amp\.{key} with compile=true: the compiler of torch {version[:3]}"):
            make_compilable(Amp(level="o1", **chosen))
    else:
        make_compilable(Amp(level="o1", **chosen))
        assert vars(switches) == ({"backward_pass_autocast": "off"} if has_switch else {})
