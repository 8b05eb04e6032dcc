"""Modules kept in float32 inside a model that otherwise isn't (`amp.keep_fp32`)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from amp_launcher.torch.precision.cast import Float32Forward, compute_in_float32, refuse_unknown
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.loops import backward, of


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


@pytest.mark.parametrize("level", ["o1", "o2", "o3"])
@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ([], set()),
        (["head"], {"head"}),
        (["*.first"], {"blocks.0.first", "blocks.1.first"}),
        (["blocks.0"], {"blocks.0.first", "blocks.0.second"}),
        (["blocks"], {"blocks.0.first", "blocks.0.second", "blocks.1.first", "blocks.1.second"}),
        (["blocks.[01].second", "head"], {"blocks.0.second", "blocks.1.second", "head"}),
    ],
)
def test_modules_that_match_a_pattern_compute_in_float32_with_all_inside_them(level, patterns, kept):
    precision = of(level, keep_fp32=tuple(patterns))
    model = precision.prepare(Model())
    backward(precision, model, torch.ones(2, 8), torch.sum)
    assert {*precision.kept} >= {name for name in kept if name in patterns} and bool(precision.kept) == bool(patterns)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            inputs, weight, result = module.dtypes
            assert weight == (torch.float32 if level == "o1" or name in kept else torch.bfloat16)
            assert (result == torch.float32) == (name in kept)
            assert inputs == torch.float32 or name not in kept
            assert module.weight.grad is not None


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("haed", "did you mean head?"),
        ("Head", ""),
        ("blocks.7.*", "modules: blocks, blocks.0"),
    ],
)
def test_a_pattern_that_matches_no_module_is_refused(pattern, hint):
    with pytest.raises(SettingsError) as caught:
        refuse_unknown([nn.Linear(2, 2), Model()], [pattern])
    assert f"amp.keep_fp32: {pattern} names no module of Linear, Model" in str(caught.value)
    assert hint in str(caught.value)
    assert caught.value.key == "amp.keep_fp32"


def test_a_kept_module_is_still_one_of_its_class_with_its_parameter_names():
    model = Model()
    names = set(model.state_dict())
    compute_in_float32(model.head, "cpu")
    compute_in_float32(model.head, "cpu")
    assert isinstance(model.head, Noting)
    assert set(model.state_dict()) == names
    assert type(model.head).__mro__.count(Float32Forward) == 1


def test_a_copy_of_a_kept_module_computes_with_its_own_weights_and_leaves_autocast_on():
    linear = nn.Linear(2, 1, bias=False)
    compute_in_float32(linear, "cpu")
    copied = copy.deepcopy(linear)
    nn.init.constant_(copied.weight, 3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = copied(torch.ones(1, 2, dtype=torch.bfloat16))
        assert torch.is_autocast_enabled("cpu")
    assert (result.item(), result.dtype) == (6.0, torch.float32)


class Dtypes(nn.Module):
    def forward(self, pair, *, named):
        return [value.dtype for value in (*pair, *named.values())]


def test_tensors_inside_lists_tuples_and_dictionaries_are_cast_and_others_are_not():
    module = Dtypes()
    compute_in_float32(module, "cpu")
    half, count, exact = torch.ones(1).half(), torch.ones(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    dtypes = module((half, count), named={"exact": exact, "half": half})
    assert dtypes == [torch.float32, torch.int64, torch.float64, torch.float32]
