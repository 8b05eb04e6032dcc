"""Modules kept in float32 inside a model that otherwise isn't (`amp.keep_fp32`)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.precision import Precision
from recipes.torch_.precision.cast import matching
from recipes.torch_.precision.float32_modules import Float32Forward, compute_in_float32
from recipes.typed import SettingsError


class Noting(nn.Linear):
    """A linear layer that notes what it was given and what it made of it, before anything is cast back."""

    def forward(self, inputs):
        result = super().forward(inputs)
        self.dtypes = inputs.dtype, self.weight.dtype, result.dtype
        return result


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Noting(8, 8)
        self.second = Noting(8, 8)

    def forward(self, inputs):
        return self.second(self.first(inputs))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = Noting(8, 4)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def run(level, *patterns):
    precision = Precision.of(Amp(level=level, keep_fp32=patterns), LossScale(), torch.device("cpu"))
    model = precision.cast(Model())
    with precision.forward():
        result = model(precision.input(torch.ones(2, 8)))
    precision.backward(result.float().sum())
    ran = {name for name, module in model.named_modules() if getattr(module, "dtypes", [0])[-1] == torch.float32}
    inputs_and_weights = {dtype for name in ran for dtype in model.get_submodule(name).dtypes}
    assert inputs_and_weights <= {torch.float32}
    return precision, model, ran


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["head"], {"head"}),
        (["*.first"], {"blocks.0.first", "blocks.1.first"}),
        (["blocks.0"], {"blocks.0.first", "blocks.0.second"}),
        (["blocks"], {"blocks.0.first", "blocks.0.second", "blocks.1.first", "blocks.1.second"}),
        (["blocks.[01].second", "head"], {"blocks.0.second", "blocks.1.second", "head"}),
    ],
)
def test_what_the_patterns_name_computes_in_float32_with_all_inside_it(level, patterns, kept):
    precision, model, ran = run(level, *patterns)
    assert ran == kept
    assert set(precision.kept) >= {name for name in kept if name in patterns}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert module.weight.grad is not None
            expected = torch.float32 if level == "o1" or name in kept else torch.bfloat16
            assert module.weight.dtype == expected


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
def test_without_a_pattern_nothing_is_kept(level):
    precision, _, ran = run(level)
    assert ran == set()
    assert precision.kept == ()


@pytest.mark.parametrize(
    ("pattern", "hint"), [("haed", "did you mean head?"), ("blocks.7.*", "modules: blocks, blocks.0")]
)
def test_a_pattern_that_names_no_module_is_refused(pattern, hint):
    with pytest.raises(SettingsError) as caught:
        matching(Model(), [pattern])
    assert f"amp.keep_fp32: {pattern} names no module of Model" in str(caught.value)
    assert hint in str(caught.value)
    assert caught.value.key == "amp.keep_fp32"


def test_patterns_heed_case():
    with pytest.raises(SettingsError):
        matching(Model(), ["Head"])


def test_a_kept_module_is_still_one_of_its_class_with_its_parameter_names():
    model = Model()
    names = set(model.state_dict())
    compute_in_float32(model.head, "cpu")
    compute_in_float32(model.head, "cpu")
    assert isinstance(model.head, Noting)
    assert set(model.state_dict()) == names
    assert type(model.head).__mro__.count(Float32Forward) == 1


def test_a_copy_of_a_kept_module_computes_with_its_own_weights():
    linear = nn.Linear(2, 1, bias=False)
    compute_in_float32(linear, "cpu")
    copied = copy.deepcopy(linear)
    with torch.no_grad():
        copied.weight.fill_(3.0)
    assert copied(torch.ones(1, 2, dtype=torch.bfloat16)).item() == 6.0
    assert copied(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.float32


def test_tensors_inside_lists_tuples_and_dictionaries_are_cast_and_others_are_not():
    class Takes(nn.Module):
        def forward(self, pair, *, named):
            return [each.dtype for each in (*pair, *named.values())]

    module = Takes()
    compute_in_float32(module, "cpu")
    half, count, exact = torch.ones(1).half(), torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    assert module((half, [half][0]), named={"count": count, "exact": exact, "half": half}) == [
        torch.float32,
        torch.float32,
        torch.int64,
        torch.float64,
        torch.float32,
    ]


def test_autocast_is_on_again_after_a_kept_module():
    linear = nn.Linear(2, 2)
    compute_in_float32(linear, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.ones(1, 2)).dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")
