"""Verdicts on recorded products of the layers of `amp.gemm`: each promise, with only that promise broken."""

from __future__ import annotations

from typing import Any

import pytest

from recipes.precision import verdict
from recipes.precision.gemm import FORMATS, ROLES
from tests.recipes.precision.test_verdict import call, of_level

LAYERS = ["blocks.0.mlp.up", "blocks.0.mlp.down"]


def product(role: str, dtypes: tuple[str, ...], layers: list[str] | None = LAYERS, **other: Any) -> dict[str, Any]:
    widest = max(dtypes, key=lambda each: (each == "float32", each == "bfloat16"), default="bfloat16")
    fields = {"operation": "_scaled_mm", "functions": ["_scaled_mm"], "dtype": widest, "operands": list(dtypes)}
    return call(role != "forward", **{**fields, "role": role, "layers": layers, "emulates": [], **other})


def step(
    gemm: str = "fp8-tensorwise",
    also: tuple[dict[str, Any], ...] = (),
    rule: dict[str, Any] | None = None,
    **roles: Any,
) -> dict[str, Any]:
    """An o2 step in that format with a head left out. `roles` replaces products; None leaves a role's out."""
    made = {role: [product(role, FORMATS[gemm].operands(role))] for role in ROLES}
    made.update(roles)
    head = [product(role, ("bfloat16", "bfloat16"), ["head"], operation="mm", flops=40) for role in ROLES]
    asked = {"format": gemm, "layers": LAYERS, "left_out": {"head": "amp.gemm_exclude"}, "environment": {}}
    calls = [*(each for role in ROLES for each in made[role] or ()), *head, *also]
    return of_level("o2", calls=calls, rule={"gemm": {**asked, **(rule or {})}})


def judged(report: dict[str, Any], share: float = 0.9) -> tuple[str, str]:
    return verdict.judge([report], (), share)


@pytest.mark.parametrize("gemm", FORMATS)
def test_what_each_format_promises_is_proved(gemm: str) -> None:
    kind, why = judged(step(gemm))
    assert kind == "proved", why
    assert "100.0% of the weight gradients of 2 linear layers, 71.4% of all matrix FLOPs" in why
    assert "left out: head (amp.gemm_exclude); of the rest, bfloat16 in 100.0% of forward" in why


def test_the_reason_says_the_share_of_each_role() -> None:
    why = judged(step("fp8-rowwise-gw-hp"))[1]
    assert (
        "amp.gemm=fp8-rowwise-gw-hp: float8_e4m3fn in 100.0% of forward and 100.0% of the input gradients, bfloat16 in "
        "100.0% of the weight gradients" in why
    )


@pytest.mark.parametrize("gemm", FORMATS)
@pytest.mark.parametrize("role", ROLES)
def test_half_precision_in_place_of_the_format_is_contradicted(gemm: str, role: str) -> None:
    if "bfloat16" in FORMATS[gemm].operands(role):
        return
    kind, why = judged(step(gemm, **{role: [product(role, ("bfloat16", "bfloat16"))]}))
    assert kind == "contradicted"
    assert "; blocks.0.mlp.up, blocks.0.mlp.down ran in bfloat16" in why


def test_one_layer_in_half_precision_contradicts_however_small_it_is() -> None:
    eight = FORMATS["fp8-tensorwise"].forward
    mixed = [product("forward", eight, flops=10**6), product("forward", ("bfloat16", "bfloat16"), LAYERS[:1], flops=1)]
    kind, why = judged(step(forward=mixed))
    assert (kind, "99.9% of forward ran in float8_e4m3fn" in why) == ("contradicted", True)
    assert judged(step(forward=mixed), 0.8)[0] == "proved", "proof.share was lowered"


@pytest.mark.parametrize("gemm", ["fp8-tensorwise", "fp8-delayed"])
@pytest.mark.parametrize("role", ["input_gradient", "weight_gradient"])
def test_e4m3_gradients_where_e5m2_is_promised_are_contradicted(gemm: str, role: str) -> None:
    four = product(role, ("float8_e4m3fn", "float8_e4m3fn"), flops=1)
    honest = product(role, FORMATS[gemm].operands(role), flops=1000)  # type: ignore[arg-type]
    kind, why = judged(step(gemm, **{role: [honest, four]}), 0.1)
    assert (kind, "promises float8_e5m2 x float8_e4m3fn" in why) == ("contradicted", True)


@pytest.mark.parametrize(
    ("gemm", "role", "dtypes"),
    [
        ("fp8-rowwise-gw-hp", "weight_gradient", ("float8_e4m3fn", "float8_e4m3fn")),
        ("mxfp8", "forward", ("float4_e2m1fn_x2", "float4_e2m1fn_x2")),
        ("fp8-tensorwise", "weight_gradient", ("float8_e5m2", "float4_e2m1fn_x2")),
    ],
)
def test_narrower_than_promised_contradicts_at_any_share(gemm: str, role: str, dtypes: tuple[str, str]) -> None:
    honest = product(role, FORMATS[gemm].operands(role), flops=10**6)  # type: ignore[arg-type]
    assert judged(step(gemm, **{role: [honest, product(role, dtypes, flops=1)]}), 0.1)[0] == "contradicted"


def test_a_head_that_slipped_into_eight_bits_is_contradicted() -> None:
    slipped = product("forward", ("float8_e4m3fn", "float8_e4m3fn"), ["head"], flops=1)
    kind, why = judged(step(also=(slipped,)), 0.1)
    assert kind == "contradicted"
    assert "head ran in float8_e4m3fn, but amp.gemm=fp8-tensorwise is not for it" in why


def test_attention_and_other_products_follow_the_level() -> None:
    attention = call(False, "float32", 10**4, operation="bmm", functions=["matmul"], role="forward", layers=[])
    kind, why = judged(step(also=(attention,)))
    assert (kind, "of forward ran in bfloat16, but o2 requires 90%" in why) == ("contradicted", True)


def test_a_format_that_is_on_for_no_layer_is_contradicted() -> None:
    kind, why = judged(step(rule={"layers": []}))
    assert (kind, "it is on for no layer" in why) == ("contradicted", True)


def test_a_layer_that_did_not_run_is_unknown() -> None:
    kind, why = judged(step(rule={"layers": [*LAYERS, "blocks.1.mlp.up"]}))
    assert (kind, "no product of blocks.1.mlp.up was seen in forward" in why) == ("unknown", True)


def test_a_format_without_any_gradient_is_unknown() -> None:
    kind, why = judged(step(input_gradient=None, weight_gradient=None))
    assert (kind, "no gradient of the layers" in why) == ("unknown", True)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({}, "the role of _scaled_mm of blocks.0.mlp.up"),
        ({"layers": None}, "the layer of _scaled_mm in float8_e4m3fn can't be told"),
        ({"layers": None, "dtype": "bfloat16"}, "the layer of _scaled_mm in bfloat16 can't be told"),
    ],
)
def test_a_product_whose_role_or_layer_cannot_be_told_is_unknown(other: dict[str, Any], reason: str) -> None:
    kind, why = judged(step(also=(product("", ("float8_e4m3fn", "float8_e4m3fn"), **{"layers": LAYERS, **other}),)))
    assert (kind, reason in why) == ("unknown", True), why


@pytest.mark.parametrize("wide", ["float32", "bfloat16"])
@pytest.mark.parametrize("gemm", ["fp8-tensorwise", "mxfp8", "nvfp4"])
def test_products_that_are_emulated_have_a_verdict_of_their_own(gemm: str, wide: str) -> None:
    formats = {role: list(FORMATS[gemm].operands(role)) for role in ROLES}
    emulated = {role: [product(role, (wide, wide), emulates=formats[role], operation="mm")] for role in ROLES}
    kind, why = judged(step(gemm, **emulated))
    assert (kind, f"and then multiplied in {wide}" in why) == ("emulated", True)
    assert judged(step(gemm, **emulated), 0.1)[0] == "emulated", "no share accepts it"


def test_emulating_another_format_than_the_one_asked_for_is_contradicted() -> None:
    other = product("input_gradient", ("float32", "float32"), emulates=["float8_e4m3fn", "float8_e4m3fn"])
    assert judged(step(input_gradient=[other]))[0] == "contradicted"


def test_a_backward_that_the_environment_took_out_of_eight_bits_names_the_variable() -> None:
    roles = {role: [product(role, ("bfloat16", "bfloat16"), operation="mm")] for role in ROLES[1:]}
    kind, why = judged(step("fp8-delayed", rule={"environment": {"NVTE_BACKWARD_OVERRIDE": "high_precision"}}, **roles))
    assert kind == "contradicted"
    assert "ran in bfloat16; NVTE_BACKWARD_OVERRIDE=high_precision has TransformerEngine" in why


def test_eight_bits_without_amp_gemm_are_contradicted_at_any_share() -> None:
    narrow = product("forward", ("float8_e4m3fn", "float8_e4m3fn"), flops=1)
    kind, why = judged(of_level("o1", calls=[call(False, flops=1000), call(True, flops=2000), narrow]))
    assert kind == "contradicted"
    assert "narrower than amp=o1 asks for: leave out what converts it, or name its format with amp.gemm" in why
