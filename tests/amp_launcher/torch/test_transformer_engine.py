"""Matrix products by TransformerEngine's modules, with a stand-in for it, which needs CUDA."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve
from amp_launcher.torch.precision import Precision, precision_of, transformer_engine
from amp_launcher.typed import SettingsError

CPU = torch.device("cpu")
INPUTS = torch.ones(2, 64)


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
    resolved = resolve(amp, LossScale(), framework="torch", device="cuda", capability=(10, 0), environ={})
    return precision_of(dataclasses.replace(resolved, device="cpu", tf32=False), CPU)


@pytest.mark.parametrize("gemm", ["mxfp8", "nvfp4"])
def test_modules_of_transformer_engine_run_under_its_autocast(engine: list[Any], gemm: str):
    import transformer_engine.pytorch as te

    precision = applied(gemm)
    model = precision.prepare(nn.Sequential(te.Linear(64, 64), nn.Linear(64, 32)))
    with precision:
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
    model = precision.prepare(nn.Sequential(te.Linear(64, 64)))
    with precision:
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
    model = precision.prepare(nn.Sequential(te.Linear(64, 64)))
    with pytest.raises(SettingsError, match=r"refuses its own DelayedScaling: Delayed"), precision:
        model(INPUTS)


def test_what_transformer_engine_can_not_do_is_refused(engine: list[Any]):
    import transformer_engine.pytorch as te

    with pytest.raises(SettingsError, match="in modules of its own, and Sequential has none; build it of transformer"):
        applied("mxfp8").prepare(nn.Sequential(nn.Linear(64, 32)))
    with pytest.raises(SettingsError, match=r"amp.keep_fp32 names 0, which multiplies in mxfp8 wherever it is"):
        applied("mxfp8", keep_fp32=("0",)).prepare(nn.Sequential(te.Linear(64, 64)))
    with pytest.raises(SettingsError, match=r"TransformerEngine's modules all multiply in it"):
        applied("mxfp8", gemm_exclude=("head",))


def test_transformer_engine_that_is_missing_or_old_is_refused(engine: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["transformer_engine"], "__version__", "2.1.0+cu13")
    with pytest.raises(SettingsError, match=r"transformer_engine 2.8 or newer, and there is 2.1.0\+cu13: pip inst"):
        applied("nvfp4").prepare(nn.Sequential(nn.Linear(64, 32)))
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(SettingsError, match=r"needs TransformerEngine, which can't be imported .*: pip install"):
        applied("nvfp4").prepare(nn.Sequential(nn.Linear(64, 32)))
