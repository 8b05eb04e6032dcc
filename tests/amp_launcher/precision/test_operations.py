"""Names of operations, torch's and Paddle's."""

from __future__ import annotations

import pytest

from amp_launcher.precision.operations import (
    PADDLE,
    TORCH,
    canonical,
    in_paddle,
    lists,
    tensorflow_gradients,
    tensorflow_lists,
)
from amp_launcher.typed import SettingsError


def test_an_alias_stands_for_torchs_operation_and_is_counted_once():
    assert canonical(("elementwise_add", "conv2d", "add", "matmul_v2"), "amp.deny") == ("add", "conv2d", "matmul")


def test_paddle_gets_every_name_of_an_operation_but_its_old_one_of_the_matrix_product():
    assert in_paddle(("matmul", "mul", "tanh")) == ["matmul", "matmul_v2", "elementwise_mul", "tanh"]


def test_every_alias_leads_to_an_operation_and_hides_none():
    assert set(PADDLE.values()) <= TORCH
    assert not set(PADDLE) & TORCH
    assert {"elementwise_add", "matmul_v2", "softmax_with_cross_entropy", "reduce_mean"} <= set(PADDLE)


@pytest.mark.parametrize(
    ("name", "near"), [("conv2", "conv2d"), ("softmx", "softmax"), ("elementwise_ad", "elementwise_add")]
)
def test_an_unknown_operation_is_refused_with_the_nearest(name, near):
    with pytest.raises(SettingsError, match=f"amp.deny: {name} is not an operation known here; did you mean {near}"):
        canonical((name,), "amp.deny")


def test_both_lists_are_in_torchs_names():
    assert lists(("softmax",), ("elementwise_add", "linear")) == (("softmax",), ("add", "linear"))


@pytest.mark.parametrize(
    ("name", "gradients"),
    [
        ("Conv2D", ("Conv2DBackpropFilter", "Conv2DBackpropInput")),
        ("Conv3D", tuple(f"Conv3DBackprop{side}{version}" for side in ("Filter", "Input") for version in ("", "V2"))),
        ("FusedBatchNormV3", ("FusedBatchNormGradV3",)),
        ("CudnnRNNV3", ("CudnnRNNBackpropV3",)),
        ("CudnnRNN", ("CudnnRNNBackprop",)),
        ("MaxPool", ("MaxPoolGrad", "MaxPoolGradGrad")),
        ("MaxPoolV2", ("MaxPoolGradGradV2", "MaxPoolGradV2")),
        ("Relu", ("ReluGrad",)),
        ("MatMul", ()),
        ("Conv2DBackpropInput", ()),
    ],
)
def test_the_gradients_of_a_tensorflow_operation_are_those_of_its_version(name, gradients):
    assert tensorflow_gradients(name) == gradients


def test_gradients_go_where_their_operation_goes_unless_they_are_named():
    lists = tensorflow_lists({"deny": ["Conv2D"], "allow": ["Conv2DBackpropFilter"], "clear": ["Relu"]})
    assert lists == {
        "allow": ("Conv2DBackpropFilter",),
        "deny": ("Conv2D", "Conv2DBackpropInput"),
        "infer": (),
        "clear": ("Relu", "ReluGrad"),
    }


def test_a_tensorflow_operation_on_two_lists_is_refused():
    with pytest.raises(SettingsError, match=r"MatMul is on both amp\.deny and amp\.infer; leave it on one"):
        tensorflow_lists({"infer": ["MatMul"], "deny": ["MatMul"]})


@pytest.mark.parametrize(
    ("allow", "deny", "also"),
    [(["matmul_v2"], ["conv2d", "matmul"], " (as matmul_v2 and matmul)"), (["matmul"], ["matmul", "conv2d"], "")],
)
def test_an_operation_on_both_lists_is_named_in_the_words_of_each(allow, deny, also):
    with pytest.raises(SettingsError) as refused:
        lists(allow, deny)
    assert str(refused.value) == f"matmul is on both amp.allow and amp.deny{also}; leave it on one"
