"""Verdicts on recorded products of the layers of `amp.gemm`: each promise, with only that promise broken."""

from __future__ import annotations

import pytest

from amp_launcher.precision.gemm import FORMATS, ROLES
from tests.amp_launcher.precision.reports import both, call, expect, judged, report

LAYERS = ["blocks.0.mlp.up", "blocks.0.mlp.down"]
HALF, EIGHT = ("bfloat16", "bfloat16"), ("float8_e4m3fn", "float8_e4m3fn")


def product(role, dtypes, layers=LAYERS, **other):
    widest = max(dtypes, key=lambda dtype: (dtype == "float32", dtype == "bfloat16"), default="bfloat16")
    fields = {"operation": "_scaled_mm", "functions": ["_scaled_mm"], "dtype": widest, "operands": list(dtypes)}
    return call(role != "forward", **{**fields, "role": role, "layers": layers, "emulates": [], **other})


def promised(gemm, role, **other):
    return product(role, FORMATS[gemm].operands(role), **other)


def step(gemm="fp8-tensorwise", *also, rule=None, **roles):
    """An o2 step in that format with a head left out, and `also` these products. `roles` replaces products of a role,
    by none with an empty list."""
    products = {**{role: [promised(gemm, role)] for role in ROLES}, **roles}
    head = [product(role, HALF, ["head"], operation="mm", flops=40) for role in ROLES]
    asked = {"format": gemm, "layers": LAYERS, "left_out": {"head": "amp.gemm_exclude"}}
    calls = [*(call for role in ROLES for call in products[role]), *head, *also]
    return report("o2", calls=calls, rule={"gemm": {**asked, **(rule or {})}})


@pytest.mark.parametrize("gemm", FORMATS)
def test_what_each_format_promises_is_proved_and_half_precision_in_its_place_is_contradicted(gemm):
    expect("proved", "of 2 linear layers, 71.4% of all matrix FLOPs", step(gemm))
    expect("proved", "left out: head (amp.gemm_exclude); of the rest, bfloat16 in 100.0% of forward", step(gemm))
    for role in ROLES:
        if "bfloat16" not in FORMATS[gemm].operands(role):
            why = "; blocks.0.mlp.up, blocks.0.mlp.down ran in bfloat16"
            expect("contradicted", why, step(gemm, **{role: [product(role, HALF)]}))


def test_the_reason_says_the_share_of_each_role():
    why = (
        "amp.gemm=fp8-rowwise-gw-hp: float8_e4m3fn in 100.0% of forward and 100.0% of the input gradients, bfloat16 in "
        "100.0% of the weight gradients"
    )
    expect("proved", why, step("fp8-rowwise-gw-hp"))
    alone = step()
    alone["calls"] = [call for call in alone["calls"] if call["layers"] == LAYERS]
    assert "of the rest" not in judged(alone)[1]


def test_one_layer_in_half_precision_contradicts_however_small_it_is_unless_the_share_is_lowered():
    mixed = step(forward=[product("forward", EIGHT, flops=10**6), product("forward", HALF, LAYERS[:1], flops=1)])
    expect("contradicted", "99.9% of forward ran in float8_e4m3fn", mixed)
    expect("proved", "", mixed, share=0.8)
    four_fifths = step(forward=[product("forward", EIGHT, flops=80), product("forward", HALF, LAYERS[:1], flops=20)])
    expect("proved", "", four_fifths, share=0.8)
    expect("contradicted", "80.0% of forward", four_fifths, share=0.81)


@pytest.mark.parametrize(
    ("gemm", "role", "dtypes", "reason"),
    [
        *(
            ("fp8-tensorwise", role, EIGHT, "promises float8_e5m2 x float8_e4m3fn")
            for role in ("input_gradient", "weight_gradient")
        ),
        ("fp8-rowwise-gw-hp", "weight_gradient", EIGHT, "promises bfloat16"),
        ("mxfp8", "forward", ("float4_e2m1fn_x2", "float4_e2m1fn_x2"), "promises float8_e4m3fn"),
        ("fp8-tensorwise", "forward", ("int8", "int8"), "ran in int8, but"),
        ("fp8-tensorwise", "weight_gradient", ("float8_e5m2", "float4_e2m1fn_x2"), "promises float8_e5m2"),
    ],
)
def test_another_or_narrower_dtype_than_promised_contradicts_at_any_share(gemm, role, dtypes, reason):
    products = [promised(gemm, role, flops=10**6), product(role, dtypes, flops=1)]
    expect("contradicted", reason, step(gemm, **{role: products}), share=0.1)


def test_one_operand_wider_than_promised_is_only_a_lower_share():
    half_wide = product("weight_gradient", ("bfloat16", "float8_e4m3fn"), flops=1)
    mixed = step(weight_gradient=[promised("fp8-tensorwise", "weight_gradient", flops=100), half_wide])
    expect("proved", "", mixed, share=0.8)
    expect("contradicted", "99.0% of the weight gradients", mixed)


def test_a_product_of_a_known_role_outside_all_layers_is_proved_by_the_level():
    expect("proved", "", step("fp8-tensorwise", product("forward", HALF, None, operation="bmm")))


def test_products_outside_the_layers_follow_the_level():
    slipped = product("forward", EIGHT, ["head"], flops=1)
    why = "head ran in float8_e4m3fn, but amp.gemm=fp8-tensorwise is not for it"
    expect("contradicted", why, step("fp8-tensorwise", slipped), share=0.1)
    attention = call(False, "float32", 10**4, operation="bmm", functions=["matmul"], role="forward", layers=[])
    expect("contradicted", "of forward ran in bfloat16, but o2 requires 90%", step("fp8-tensorwise", attention))


def test_layers_and_gradients_that_did_not_run_are_unknown():
    more = [*LAYERS, "blocks.1.mlp.up"]
    expect("unknown", "no product of blocks.1.mlp.up was seen in forward", step(rule={"layers": more}))
    expect("unknown", "no gradient of the layers", step(input_gradient=[], weight_gradient=[]))


def test_without_layers_eight_bits_are_unknown_and_half_precision_contradicts():
    why = "was given no layers: precision.prepare(model) of Precision() converts those that it is for"
    expect("unknown", f"fp8-tensorwise {why}; what a script converts itself", step(rule={"layers": []}))
    halves = {role: [product(role, HALF)] for role in ROLES}
    expect("contradicted", f"fp8-tensorwise {why}", step(rule={"layers": []}, **halves))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, "the role of _scaled_mm of blocks.0.mlp.up"),
        ({"layers": None}, "the layer of _scaled_mm in float8_e4m3fn can't be told"),
        ({"layers": None, "dtype": "bfloat16"}, "the layer of _scaled_mm in bfloat16 can't be told"),
    ],
)
def test_a_product_whose_role_or_layer_cannot_be_told_is_unknown(other, reason):
    expect("unknown", reason, step("fp8-tensorwise", product("", EIGHT, **{"layers": LAYERS, **other})))


@pytest.mark.parametrize("wide", ["float32", "bfloat16"])
@pytest.mark.parametrize("gemm", ["fp8-tensorwise", "mxfp8", "nvfp4"])
def test_emulated_products_have_a_verdict_of_their_own_that_no_share_accepts(gemm, wide):
    operands = {role: list(FORMATS[gemm].operands(role)) for role in ROLES}
    emulated = {role: [product(role, (wide, wide), emulates=operands[role], operation="mm")] for role in ROLES}
    for share in (0.9, 0.1):
        expect("emulated", f"and then multiplied in {wide}", step(gemm, **emulated), share=share)


def test_emulating_another_format_than_the_one_asked_for_is_contradicted():
    other = product("input_gradient", ("float32", "float32"), emulates=list(EIGHT))
    expect("contradicted", "", step(input_gradient=[other]))


@pytest.mark.parametrize("gemm", FORMATS)
def test_operands_that_are_scaled_as_another_format_does_contradict(gemm):
    own = FORMATS[gemm].scale
    scaled = {role: [promised(gemm, role, scales=[own])] for role in ROLES}
    expect("proved", "", step(gemm, **scaled))
    other = "float32" if own != "float32" else "float8_e8m0fnu"
    why = f"was scaled by {other}, but amp.gemm={gemm} promises {own}"
    expect("contradicted", why, step(gemm, **{**scaled, "forward": [promised(gemm, "forward", scales=[other])]}))


def test_eight_bits_without_amp_gemm_are_contradicted_at_any_share():
    why = "narrower than amp=o1 asks for: leave out what converts it, or name its format with amp.gemm"
    expect("contradicted", why, report(calls=[*both(flops=10**4), product("forward", EIGHT, flops=1)]))
