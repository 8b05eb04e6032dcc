"""Linear layers whose matrix products run in other number formats, `amp.gemm`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import sys
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from recipes import arguments
from recipes.precision.gemm import FORMATS, ROLES
from recipes.precision.levels import Amp, LossScale
from recipes.precision.resolved import resolve
from recipes.recipe import find
from recipes.settings import gemm_layers
from recipes.torch_.gpt import Net as Gpt
from recipes.torch_.mnist import Net as Mnist
from recipes.torch_.precision import Precision, transformer_engine
from recipes.torch_.simplenet import Net as SimpleNet
from recipes.typed import SettingsError
from tests.recipes.torch_ import trainers

CPU = torch.device("cpu")
HALF = ("torch.bfloat16", "torch.bfloat16")
ON_CPU = [name for name, each in FORMATS.items() if each.cpu]
GENERATOR = torch.Generator().manual_seed(1)
INPUTS, TARGETS = torch.randn(32, 64, generator=GENERATOR), torch.randn(32, 32, generator=GENERATOR)


class Products(TorchDispatchMode):
    """Counts matrix products by their operands' dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str, str]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_traceable_wrapper_subclass(each) for each in args):
            return NotImplemented  # torchao's tensors become products of their data
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "_scaled_mm"):
            first, second = args[1:3] if name == "addmm" else args[:2]
            self.seen[name, str(first.dtype), str(second.dtype)] += 1
        return func(*args, **(kwargs or {}))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 64), nn.Linear(64, 32))


def of(level: str, gemm: str, **others: Any) -> Precision:
    return Precision.of(Amp(level=level, gemm=gemm, **others), LossScale(), CPU)  # type: ignore[arg-type]


def train(precision: Precision, model: nn.Module, steps: int, see: Products | None = None) -> list[float]:
    optimizer = precision.optimizer(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = []
    for _ in range(steps):
        with see or contextlib.nullcontext():
            with precision.forward():
                loss = mse_loss(precision.output(model(precision.input(INPUTS))), TARGETS)
            precision.backward(loss)
        precision.step(optimizer)
        precision.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("level", "gemm"), list(itertools.product(("o1", "o2"), ON_CPU)))
def test_each_role_multiplies_in_its_format_and_all_else_in_bfloat16(level: str, gemm: str):
    precision = of(level, gemm)
    model, see = precision.cast(net()), Products()
    train(precision, model, 1, see)
    expected = Counter({("addmm", *HALF): 1, ("mm", *HALF): 2})
    for role in ROLES:
        first, second = (f"torch.{each}" for each in FORMATS[gemm].operands(role))
        expected["mm" if first == HALF[0] else "_scaled_mm", first, second] += 2
    assert see.seen == expected
    assert precision.gemm_layers == (("0", "3"), {"4": "the output layer"})


@pytest.mark.parametrize(
    ("level", "gemm"), [("o1", "fp8-rowwise-gw-hp"), ("o2", "fp8-tensorwise"), ("o2", "fp8-rowwise")]
)
def test_float32_weights_are_stepped_and_the_loss_falls_as_in_bfloat16(level: str, gemm: str):
    precision, half = of(level, gemm), of(level, "half")
    model, twin = precision.cast(net()), half.cast(net())
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
    of("o2", "fp8-tensorwise").cast(model)
    assert {name: id(each) for name, each in model.named_parameters()} == {
        name: id(each) for name, each in before.items()
    }
    copied = copy.deepcopy(model)
    assert copied.state_dict().keys() == net().state_dict().keys()
    assert [type(each) for each in copied] == [type(each) for each in model]


def test_layers_that_others_call_by_their_weights_are_left_out():
    model = nn.ModuleDict(
        {"attention": nn.MultiheadAttention(64, 4), "first": nn.Linear(64, 64), "last": nn.Linear(64, 8)}
    )
    precision = of("o1", "fp8-tensorwise")
    precision.cast(model)
    assert precision.gemm_layers.converted == ("first",)
    assert precision.gemm_layers.left_out == {
        "attention.out_proj": "a NonDynamicallyQuantizableLinear, whose own forward would be lost",
        "last": "the output layer",
    }


def test_a_layer_with_hooks_is_left_out():
    model = net()
    model[0].register_forward_hook(lambda *_: None)
    precision = of("o1", "fp8-tensorwise")
    precision.cast(model)
    assert precision.gemm_layers.converted == ("3",)
    assert precision.gemm_layers.left_out["0"] == "it has hooks, which would be lost"


def test_a_layer_in_two_places_is_converted_in_both():
    shared = nn.Linear(64, 64)
    model = nn.ModuleDict({"first": shared, "second": shared, "last": nn.Linear(64, 8)})
    of("o1", "fp8-tensorwise").cast(model)
    assert type(model["first"]).__name__ == "Float8Linear"
    assert model["first"] is model["second"] is not shared


def test_kept_modules_stay_in_float32():
    precision = of("o2", "fp8-tensorwise", keep_fp32=("3",))
    model, see = precision.cast(net()), Products()
    train(precision, model, 1, see)
    assert precision.gemm_layers.left_out["3"] == "amp.keep_fp32=3"
    assert see.seen["addmm", "torch.float32", "torch.float32"] == 1


def test_a_model_without_a_layer_to_convert_is_refused():
    with pytest.raises(SettingsError, match=r"Sequential has no linear layers; say amp.gemm=half"):
        of("o1", "fp8-tensorwise").cast(nn.Sequential(nn.Conv2d(3, 8, 3)))


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
    precision = Precision.of(settings.amp, settings.loss_scale, CPU)
    precision.cast(make(settings.train))
    assert chosen == precision.gemm_layers


def test_importing_torchao_shows_nothing_of_what_no_one_can_act_on(tmp_path):
    program = (
        "import logging, torch; from torch import nn; from recipes.torch_.precision import Precision\n"
        "from recipes.precision.levels import Amp, LossScale\n"
        "precision = Precision.of(Amp(level='o1', gemm='fp8-rowwise'), LossScale(), torch.device('cpu'))\n"
        "precision.cast(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))\n"
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
            of("o1", "fp8-rowwise").cast(net())
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(
        SettingsError, match=r"needs torchao, which can't be imported .*: pip install 'amp-launcher\[fp8\]'"
    ):
        of("o1", "fp8-rowwise").cast(net())


def test_one_rank_under_ddp_trains_as_without(tmp_path: Any):
    alone = of("o2", "fp8-tensorwise")
    expected = train(alone, alone.cast(net()), 3)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        precision = of("o2", "fp8-tensorwise")
        assert train(precision, DistributedDataParallel(precision.cast(net())), 3) == expected
    finally:
        distributed.destroy_process_group()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A stand-in for TransformerEngine, which imports only where there is CUDA: which recipe was in force when."""
    names = ("", ".common", ".common.recipe", ".pytorch", ".pytorch.module", ".pytorch.module.base")
    modules = {name: types.ModuleType(f"transformer_engine{name}") for name in names}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if name:
            setattr(modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    in_force: list[Any] = []

    class Module(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            in_force.append(current[-1])
            return nn.functional.linear(inputs, self.weight)

    class Linear(Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(outputs, inputs))

    class Recipe:
        pass

    current: list[Any] = [None]

    @contextlib.contextmanager
    def autocast(enabled: bool, recipe: Any) -> Iterator[None]:
        current.append(recipe if enabled else None)
        yield
        current.pop()

    modules[""].__version__ = "2.8.0"
    modules[".common.recipe"].MXFP8BlockScaling = modules[".common.recipe"].NVFP4BlockScaling = Recipe
    modules[".pytorch.module.base"].TransformerEngineBaseModule = Module
    modules[".pytorch"].autocast, modules[".pytorch"].Linear = autocast, Linear
    transformer_engine._import.cache_clear()
    yield in_force
    transformer_engine._import.cache_clear()
    transformer_engine._recipe.cache_clear()


def applied(gemm: str, **others: Any) -> Precision:
    """As on a GPU that has the format, applied to a model on the CPU."""
    amp = Amp(level="o2", gemm=gemm, **others)  # type: ignore[arg-type]
    found = resolve(amp, LossScale(), framework="torch", device="cuda", capability=(10, 0), environ={})
    return Precision.apply(dataclasses.replace(found, device="cpu", tf32=False), CPU)


@pytest.mark.parametrize("gemm", ["mxfp8", "nvfp4"])
def test_modules_of_transformer_engine_run_under_its_autocast(engine: list[Any], gemm: str):
    import transformer_engine.pytorch as te

    precision = applied(gemm)
    model = precision.cast(nn.Sequential(te.Linear(64, 64), nn.Linear(64, 32)))
    with precision.forward():
        model(INPUTS)
        model(INPUTS)
    assert type(engine[0]).__name__ == "Recipe" and engine[0] is engine[1]
    assert precision.gemm_layers == (("0",), {"1": "not a module of TransformerEngine"})


def test_before_2_9_its_autocast_has_another_name(engine: list[Any], monkeypatch: pytest.MonkeyPatch):
    import transformer_engine.pytorch as te

    monkeypatch.setattr(te, "fp8_autocast", lambda enabled, fp8_recipe: new(enabled, fp8_recipe), raising=False)
    new = te.autocast
    monkeypatch.delattr(te, "autocast")
    precision = applied("mxfp8")
    model = precision.cast(nn.Sequential(te.Linear(64, 64)))
    with precision.forward():
        model(INPUTS)
    assert type(engine[0]).__name__ == "Recipe"


def test_a_recipe_that_transformer_engine_refuses_is_an_error_in_words(
    engine: list[Any], monkeypatch: pytest.MonkeyPatch
):
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe

    def delayed() -> None:
        raise AssertionError("Delayed scaling only supports backward_override=None.")

    monkeypatch.setattr(recipe, "DelayedScaling", delayed, raising=False)
    precision = applied("fp8-delayed")
    model = precision.cast(nn.Sequential(te.Linear(64, 64)))
    with pytest.raises(SettingsError, match=r"refuses its own DelayedScaling: Delayed"), precision.forward():
        model(INPUTS)


def test_what_transformer_engine_can_not_do_is_refused(engine: list[Any]):
    import transformer_engine.pytorch as te

    with pytest.raises(SettingsError, match="in modules of its own, and Sequential has none; build it of transformer"):
        applied("mxfp8").cast(net())
    with pytest.raises(SettingsError, match=r"amp.keep_fp32 names 0, which multiplies in mxfp8 wherever it is"):
        applied("mxfp8", keep_fp32=("0",)).cast(nn.Sequential(te.Linear(64, 64)))
    with pytest.raises(SettingsError, match=r"TransformerEngine's modules all multiply in it"):
        applied("mxfp8", gemm_exclude=("head",))


def test_transformer_engine_that_is_missing_or_old_is_refused(engine: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["transformer_engine"], "__version__", "2.1.0+cu13")
    with pytest.raises(SettingsError, match=r"transformer_engine 2.8 or newer, and there is 2.1.0\+cu13: pip inst"):
        applied("nvfp4").cast(net())
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(SettingsError, match=r"needs TransformerEngine, which can't be imported .*: pip install"):
        applied("nvfp4").cast(net())


@pytest.mark.slow
def test_compiled_it_trains_as_eager():
    eager = of("o2", "fp8-tensorwise")
    expected = train(eager, eager.cast(net()), 3)
    amp = Amp(level="o2", gemm="fp8-tensorwise")
    precision = Precision.of(amp, LossScale(), CPU, compile=True)
    assert train(precision, torch.compile(precision.cast(net())), 3) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("name", FORMATS)
def test_operands_are_dtypes_of_torch(name: str):
    for role in ROLES:
        assert all(isinstance(getattr(torch, each), torch.dtype) for each in FORMATS[name].operands(role))


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.mechanism == "torchao"])
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
        dtypes = [half if each.scaling_type is ScalingType.DISABLED else each.target_dtype for each in casts[role]]
        assert dtypes == [getattr(torch, each) for each in FORMATS[name].operands(role)]


def test_on_a_cpu_products_do_without_onednn_and_leave_its_switch_as_it_was():
    precision, enabled = of("o2", "fp8-rowwise"), []
    model = precision.cast(net())
    for layer in (model[3], model[4]):
        layer.register_forward_pre_hook(lambda *_: enabled.append(torch.backends.mkldnn.enabled))
        layer.register_full_backward_hook(lambda *_: enabled.append(torch.backends.mkldnn.enabled))
    train(precision, model, 1)
    assert enabled == [False] * 4
    assert torch.backends.mkldnn.enabled
