"""Linear layers whose matrix products run in other number formats, `amp.gemm`."""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from amp_launcher import arguments
from amp_launcher.precision.gemm import FORMATS, ROLES
from amp_launcher.precision.levels import Amp
from amp_launcher.recipe import find
from amp_launcher.recipes.gpt.train_torch import Net as Gpt
from amp_launcher.recipes.mnist.train_torch import Net as Mnist
from amp_launcher.recipes.simplenet.train_torch import Net as SimpleNet
from amp_launcher.settings import gemm_layers
from amp_launcher.torch.observe.dispatch_observer import DispatchObserver
from amp_launcher.torch.observe.modules import Modules
from amp_launcher.torch.precision import Precision
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch import trainers

CPU = torch.device("cpu")
HALF = ("bfloat16", "bfloat16")
ON_CPU = [name for name, format in FORMATS.items() if format.cpu == "yes"]
GENERATOR = torch.Generator().manual_seed(1)
INPUTS, TARGETS = torch.randn(32, 64, generator=GENERATOR), torch.randn(32, 32, generator=GENERATOR)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 32))


def of(level: str, gemm: str, **others: Any) -> Precision:
    return Precision(Amp(level=level, gemm=gemm, **others), device=CPU)  # type: ignore[arg-type]


def train(precision: Precision, model: nn.Module, steps: int, observer: DispatchObserver | None = None) -> list[float]:
    optimizer = precision.prepare(torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = []
    for _ in range(steps):
        with observer or contextlib.nullcontext():
            with precision:
                loss = mse_loss(model(INPUTS), TARGETS)
            precision.backward(loss)
        precision.step(optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def products(precision: Precision, model: nn.Module) -> Counter[tuple[str, ...]]:
    """The matrix products of one step, by their operands' dtypes."""
    observer = DispatchObserver(Modules(model), lambda device: None)
    train(precision, model, 1, observer)
    return Counter((call.operation, *(dtype for dtype, _ in call.operands)) for call in observer.calls)


@pytest.mark.parametrize(("level", "gemm"), list(itertools.product(("o1", "o2"), ON_CPU)))
def test_each_role_multiplies_in_its_format_and_all_else_in_bfloat16(level: str, gemm: str):
    precision = of(level, gemm)
    expected = Counter({("addmm", *HALF): 1, ("mm", *HALF): 2})
    for role in ROLES:
        first, second = FORMATS[gemm].operands(role)
        expected["mm" if first == HALF[0] else "_scaled_mm", first, second] += 2
    assert products(precision, precision.prepare(net())) == expected
    assert precision.gemm_layers == (("0", "3"), {"4": "the output layer"})


@pytest.mark.parametrize(
    ("level", "gemm"), [("o1", "fp8-rowwise-gw-hp"), ("o2", "fp8-tensorwise"), ("o2", "fp8-rowwise")]
)
def test_float32_weights_are_stepped_and_the_loss_falls_as_in_bfloat16(level: str, gemm: str):
    precision, half = of(level, gemm), of(level, "half")
    model, twin = precision.prepare(net()), half.prepare(net())
    losses, others = train(precision, model, 12), train(half, twin, 12)
    weights, initial = precision.master_parameters(), dict(net().named_parameters())
    assert weights.keys() == initial.keys()
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        assert (weight != initial[name]).float().mean() > 0.99
    assert losses[-1] < 0.9 * losses[0]
    assert losses[-1] == pytest.approx(others[-1], rel=0.02)


def test_parameters_keep_their_names_and_identity():
    model = net()
    before = dict(model.named_parameters())
    of("o2", "fp8-tensorwise").prepare(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == {
        name: id(parameter) for name, parameter in before.items()
    }
    copied = copy.deepcopy(model)
    assert copied.state_dict().keys() == net().state_dict().keys()
    assert list(map(type, copied)) == list(map(type, model))


def test_layers_with_hooks_or_that_others_call_by_their_weights_are_left_out():
    layers = {"first": nn.Linear(64, 64), "hooked": nn.Linear(64, 64), "last": nn.Linear(64, 8)}
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(64, 4), **layers})
    model["hooked"].register_forward_hook(lambda *_: None)
    precision = of("o1", "fp8-tensorwise")
    precision.prepare(model)
    assert precision.gemm_layers.converted == ("first",)
    assert precision.gemm_layers.left_out == {
        "attention.out_proj": "a NonDynamicallyQuantizableLinear, whose own forward would be lost",
        "hooked": "it has hooks, which would be lost",
        "last": "the output layer",
    }


def test_a_layer_in_two_places_is_converted_in_both():
    shared = nn.Linear(64, 64)
    model = nn.ModuleDict({"first": shared, "second": shared, "last": nn.Linear(64, 8)})
    of("o1", "fp8-tensorwise").prepare(model)
    assert type(model["first"]).__name__ == "Float8Linear"
    assert model["first"] is model["second"] is not shared


def test_kept_modules_stay_in_float32():
    precision = of("o2", "fp8-tensorwise", keep_fp32=("3",))
    seen = products(precision, precision.prepare(net()))
    assert precision.gemm_layers.left_out["3"] == "amp.keep_fp32=3"
    assert seen["addmm", "float32", "float32"] == 1


def test_a_model_without_a_layer_to_convert_is_refused():
    with pytest.raises(SettingsError, match=r"Sequential has no linear layers; say amp.gemm=half"):
        of("o1", "fp8-tensorwise").prepare(nn.Sequential(nn.Conv2d(3, 8, 3)))


@pytest.mark.parametrize(
    ("recipe", "make", "words"),
    [
        ("gpt", Gpt, ("train.layers=2", "train.width=64")),
        ("mnist", Mnist, ()),
        ("simplenet", SimpleNet, ("train.width=64", "train.layers=3")),
    ],
)
def test_what_a_plan_says_of_a_recipes_layers_is_what_is_converted(recipe: str, make: Any, words: tuple[str, ...]):
    settings = arguments.parse(["amp=fp8", "batch=16", *words], recipe, "torch").settings
    chosen = gemm_layers(settings, find(recipe), 1)
    precision = Precision(settings.amp, loss_scale=settings.loss_scale, device=CPU)
    precision.prepare(make(settings.train))
    assert chosen == precision.gemm_layers


@pytest.mark.parametrize(
    ("gemm", "says"),
    [("fp8-delayed", "is TransformerEngine's, whose products no observer"), ("fp9", "is not one of half")],
)
def test_a_format_that_is_not_here_is_refused_in_a_script_too(gemm: str, says: str):
    with pytest.raises(SettingsError, match=f"amp.gemm={gemm} {says}"):
        of("o2", gemm)


def test_importing_torchao_shows_nothing_of_what_no_one_can_act_on(tmp_path):
    program = (
        "import logging, torch; from torch import nn; from amp_launcher.torch.precision import Precision\n"
        "from amp_launcher.precision.levels import Amp, LossScale\n"
        "precision = Precision(Amp(level='o1', gemm='fp8-rowwise'), device=torch.device('cpu'))\n"
        "precision.prepare(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))\n"
        "logging.getLogger('torchao').warning('what comes later')\n"
    )
    (tmp_path / "program.py").write_text(program)
    done = trainers.run([], program=[str(tmp_path / "program.py")])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "what comes later\n")


def test_torchao_that_is_missing_or_old_is_refused_with_the_install_line(monkeypatch: pytest.MonkeyPatch):
    import torchao

    with monkeypatch.context() as patch:
        patch.setattr(torchao, "__version__", "0.17.1+cpu")
        with pytest.raises(SettingsError, match=r"needs torchao 0.18 or newer, and there is 0.17.1\+cpu: pip install"):
            of("o1", "fp8-rowwise").prepare(net())
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(
        SettingsError, match=r"needs torchao, which can't be imported .*: pip install 'amp-launcher\[fp8\]'"
    ):
        of("o1", "fp8-rowwise").prepare(net())


def test_a_torch_that_scales_no_rows_on_a_cpu_is_refused_before_it_trains(monkeypatch: pytest.MonkeyPatch):
    def older(*operands: Any, out_dtype: Any) -> None:
        raise RuntimeError("Now _scaled_mm only supports per-tensor scaling for CPU backend.")

    monkeypatch.setattr(torch, "_scaled_mm", older)
    with pytest.raises(SettingsError, match=r"amp.gemm=fp8-rowwise has no kernels for a CPU in torch .*; say amp=fp8"):
        of("o1", "fp8-rowwise").prepare(net())
    of("o1", "fp8-tensorwise").prepare(net())


def test_one_rank_under_ddp_trains_as_without(tmp_path: Any):
    alone = of("o2", "fp8-tensorwise")
    expected = train(alone, alone.prepare(net()), 3)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        precision = of("o2", "fp8-tensorwise")
        assert train(precision, DistributedDataParallel(precision.prepare(net())), 3) == expected
    finally:
        distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.usefixtures("calls_for_kernels")
def test_compiled_it_trains_as_eager():
    eager = of("o2", "fp8-tensorwise")
    expected = train(eager, eager.prepare(net()), 3)
    amp = Amp(level="o2", gemm="fp8-tensorwise")
    precision = Precision(amp, device=CPU)
    assert train(precision, torch.compile(precision.prepare(net())), 3) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", FORMATS)
def test_operands_are_dtypes_of_torch(name: str):
    for role in ROLES:
        assert all(isinstance(getattr(torch, dtype), torch.dtype) for dtype in FORMATS[name].operands(role))


@pytest.mark.parametrize("name", [name for name, format in FORMATS.items() if not format.prototype])
def test_the_table_says_what_torchao_promises(name: str):
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import ScalingType

    config = Float8LinearConfig.from_recipe_name(FORMATS[name].recipe)
    casts = {
        "forward": (config.cast_config_input, config.cast_config_weight),
        "input_gradient": (config.cast_config_grad_output, config.cast_config_weight_for_grad_input),
        "weight_gradient": (config.cast_config_grad_output_for_grad_weight, config.cast_config_input_for_grad_weight),
    }
    for role in ROLES:
        half = torch.bfloat16
        dtypes = [half if cast.scaling_type is ScalingType.DISABLED else cast.target_dtype for cast in casts[role]]
        assert dtypes == [getattr(torch, dtype) for dtype in FORMATS[name].operands(role)]


@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_cpu_products_in_eight_bits_alone_do_without_onednn(compiled, monkeypatch):
    """By what torch is told: that they would take a thousand times as long holds on some CPUs only."""
    model = of("o2", "fp8-rowwise").prepare(net())
    calls = []
    monkeypatch.setattr(torch._C, "_set_mkldnn_enabled", calls.append)
    one, other = (torch.randn(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
    scale = torch.ones(())

    def multiply():
        return torch._scaled_mm(one, other.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    product = (torch.compile(multiply) if compiled else multiply)()
    assert calls == [False, True]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model[3](torch.randn(16, 128))
    assert calls == [False, True] * 2
    torch.testing.assert_close(product.float(), one.float() @ other.float().t(), rtol=1e-2, atol=1e-2)
    torch.randn(16, 32).bfloat16() @ torch.randn(32, 16).bfloat16()
    assert len(calls) == 4
