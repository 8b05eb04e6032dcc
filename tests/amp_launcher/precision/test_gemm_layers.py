"""Which linear layers a number format converts, and what it refuses."""

from __future__ import annotations

from typing import get_args

import pytest

from amp_launcher import arguments, settings
from amp_launcher.precision.gemm import FORMATS, HALF, Gemm, library_problem
from amp_launcher.precision.gemm_layers import Linear, choose, line
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import resolve
from amp_launcher.recipe import find
from amp_launcher.shown import some
from amp_launcher.typed import SettingsError

LAYERS = {
    "body.up": Linear(64, 128),
    "body.down": Linear(128, 64),
    "norm.scale": Linear(64, 64),
    "head": Linear(64, 10),
}


ODD_ROWS = {"a": Linear(64, 64, rows=24), "b": Linear(64, 8)}
EVERYTHING = Amp(level="o2", gemm="fp8-tensorwise", gemm_exclude=())


def amp(*exclude: str, gemm: Gemm = "fp8-tensorwise", **others: object) -> Amp:
    return Amp(level="o2", gemm=gemm, gemm_exclude=exclude or None, **others)  # type: ignore[arg-type]


def of_words(*words: str, devices: int = 1) -> None:
    chosen = arguments.parse(words, "gpt", "torch").settings
    settings.check_settings(chosen, devices)


def test_every_format_has_a_row():
    assert {HALF, *FORMATS} == set(get_args(Gemm))


def test_the_output_layer_stays_unless_something_is_said():
    assert choose(amp(), LAYERS, "Net") == (("body.up", "body.down", "norm.scale"), {"head": "the output layer"})


def test_patterns_name_layers_and_what_they_are_in():
    converted, left_out = choose(amp("body", "he*", keep_fp32=("norm",)), {**LAYERS, "side": Linear(16, 16)}, "Net")
    assert converted == ("side",)
    assert left_out == {
        "body.up": "amp.gemm_exclude=body",
        "body.down": "amp.gemm_exclude=body",
        "norm.scale": "amp.keep_fp32=norm",
        "head": "amp.gemm_exclude=he*",
    }


def test_an_empty_list_leaves_out_none():
    wide = {**LAYERS, "head": Linear(64, 256)}
    assert choose(EVERYTHING, wide, "Net") == (tuple(wide), {})


@pytest.mark.parametrize(("gemm", "multiple"), [("fp8-rowwise", 16), ("mxfp8", 32), ("nvfp4", 128)])
def test_layers_of_sizes_that_a_format_can_not_take_are_left_out_with_the_reason(gemm: Gemm, multiple: int):
    odd = {"up": Linear(multiple, 2 * multiple + 8), "down": Linear(multiple // 2, multiple)}
    fits = {"last": Linear(multiple, 3 * multiple)}
    assert choose(Amp(level="o2", gemm=gemm, gemm_exclude=()), {**odd, **fits}, "Net") == (
        ("last",),
        {name: f"{size.inputs} -> {size.outputs}, not in multiples of {multiple}" for name, size in odd.items()},
    )


def test_the_choice_in_a_line():
    assert line("fp8-tensorwise", *choose(amp(), LAYERS, "Net")) == (
        "amp.gemm=fp8-tensorwise: 3 linear layers converted; left in half precision: head (the output layer)"
    )


@pytest.mark.parametrize(
    ("asked", "layers", "message"),
    [
        (amp("hed"), LAYERS, "amp.gemm_exclude: hed names no linear layer of Net; did you mean head?"),
        (amp("*"), LAYERS, r"has nothing to convert: every linear layer of Net is left out \(body.up: amp.gemm_exc"),
        (amp(), {"head": Linear(64, 16)}, r"\(head: the output layer\); say amp.gemm=half, or amp.gemm_exclude"),
        (amp(), {"head": Linear(64, 10)}, r"\(head: the output layer\); say amp.gemm=half$"),
        (amp(), {}, "Net has no linear layers; say amp.gemm=half"),
        (EVERYTHING, {"a": Linear(64, 24)}, r"left out \(a: 64 -> 24, not in multiples of 16\); say amp.gemm=half$"),
        (amp(), ODD_ROWS, "must be a multiple of 16, and Net has 24 on a device"),
    ],
)
def test_what_can_not_be_converted_is_refused(asked: Amp, layers: dict[str, Linear], message: str):
    with pytest.raises(SettingsError, match=message):
        choose(asked, layers, "Net")


def test_a_refusal_names_the_key_that_leaves_out_every_layer():
    for asked, key in ((amp(), "amp.gemm"), (amp("*"), "amp.gemm_exclude")):
        with pytest.raises(SettingsError) as refused:
            choose(asked, {"head": Linear(64, 16)}, "Net")
        assert refused.value.key == key


def test_of_many_layers_the_first_are_named():
    assert some("abcdef") == "a, b, c, d and 2 more"
    assert some("abcd") == some("abcd", 9) == "a, b, c, d"


@pytest.mark.parametrize(
    ("version", "whole", "prototype"),
    [
        ("", "0.18 or newer, and it is not installed", "0.18 (for a prototype in it), and it is not installed"),
        ("0.17.9", "0.18 or newer, and there is 0.17.9", "prototype in it), and there is 0.17.9"),
        ("0.18.0+cpu", "", ""),
        ("0.19.0", "", "prototype in it), and there is 0.19.0"),
        ("1.0", "", "prototype in it), and there is 1.0"),
    ],
)
def test_a_library_of_another_version_than_a_format_needs_is_named(version: str, whole: str, prototype: str):
    for name, problem in (("fp8-tensorwise", whole), ("mxfp8", prototype)):
        found = library_problem(name, version)
        assert problem in found and bool(problem) is bool(found)


def test_a_weight_gradient_in_bfloat16_takes_any_number_of_rows():
    assert choose(amp(gemm="fp8-rowwise-gw-hp"), ODD_ROWS, "Net").converted == ("a",)


def test_rows_are_those_of_a_micro_batch_on_one_device():
    words = ("amp=fp8", "batch=8", "train.context=8", "train.layers=1")
    of_words(*words)
    of_words(*words, devices=4)
    with pytest.raises(SettingsError, match="multiple of 16, and recipe=gpt has 8 on a device; change batch"):
        of_words(*words, "accumulate=2", devices=4)


@pytest.mark.parametrize(
    ("gemm", "device", "capability", "message"),
    [
        ("mxfp8", "cuda", (9, 0), "needs compute capability 10.0, and this GPU has 9.0; say amp=fp8"),
        ("nvfp4", "cuda", (12, 0), "no kernels for compute capability 11.0 and above, and this GPU has 12.0; say amp="),
        ("nvfp4", "cpu", None, "amp.gemm=nvfp4 has no kernels for a CPU; say amp=fp8, which has"),
    ],
)
def test_a_device_that_can_not_is_refused(gemm: Gemm, device: str, capability: tuple[int, int] | None, message: str):
    with pytest.raises(SettingsError, match=message):
        resolve(amp(gemm=gemm), LossScale(), framework="torch", device=device, capability=capability, environ={})


@pytest.mark.parametrize(("device", "capability"), [("cpu", None), ("cuda", (8, 9)), ("cuda", None)])
def test_auto_is_bfloat16(device: str, capability: tuple[int, int] | None):
    mode = resolve(amp(), LossScale(), framework="torch", device=device, capability=capability, environ={})
    assert (mode.dtype, mode.gemm, mode.loss_scale.mode) == ("bfloat16", "fp8-tensorwise", "none")


def test_layers_of_a_recipe_are_known_before_it_is_built():
    chosen = arguments.parse(["amp=fp8"], "mnist", "torch").settings
    assert settings.gemm_layers(chosen, find("mnist"), 1) == (("dense1",), {"dense2": "the output layer"})
