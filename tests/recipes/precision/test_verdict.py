"""Verdicts on reports written by hand: each thing that must hold, with only that thing broken."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from recipes.precision import verdict

RULE: dict[str, Any] = {
    "level": "o1",
    "dtype": "bfloat16",
    "allow": [],
    "deny": [],
    "keep_fp32": [],
    "masters": False,
    "tf32": False,
    "device": "cpu",
}


def call(backward: bool, dtype: str = "bfloat16", flops: int = 100, **other: Any) -> dict[str, Any]:
    return {
        "operation": "mm",
        "functions": ["linear"],
        "backward": backward,
        "dtype": dtype,
        "kept": False,
        "compiled": False,
        "device": "cpu",
        "calls": 1,
        "flops": flops,
        **other,
    }


def report(**other: Any) -> dict[str, Any]:
    made = {
        "rank": 0,
        "world_size": 1,
        "step": 1,
        "rule": dict(RULE),
        "calls": [call(False), call(True, flops=200)],
        "listed": [],
        "unseen": [],
        "unaccounted": {},
        "audit": "",
        "parameters": [{"group": "other", "dtype": "float32", "elements": 10}],
        "optimizer": {"float32": 10},
        "reduced": {},
        "float32": {"switches": {}, "arithmetic": {}},
        "xla_clusters": None,
        "problems": [],
    }
    rule = other.pop("rule", {})
    made.update(copy.deepcopy(other))
    made["rule"] = {**RULE, **rule}
    return made


def of_level(level: str, **other: Any) -> dict[str, Any]:
    """An honest report of that level."""
    half = level != "o0"
    dtype = "bfloat16" if half else "float32"
    weights = "bfloat16" if level in ("o2", "o3") else "float32"
    honest: dict[str, Any] = {
        "calls": [call(False, dtype), call(True, dtype)],
        "parameters": [{"group": "other", "dtype": weights, "elements": 10}],
        "optimizer": {"bfloat16" if level == "o3" else "float32": 10},
    }
    if level == "o2":
        honest["parameters"].append({"group": "norm", "dtype": "float32", "elements": 2})
    rule = {"level": level, "dtype": dtype, "masters": level == "o2", **other.pop("rule", {})}
    return report(**{**honest, **other}, rule=rule)


def judged(*reports: dict[str, Any], planned: tuple[int, ...] = ()) -> tuple[str, str]:
    return verdict.judge(reports, planned)


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
def test_an_honest_report_is_proved_and_says_what_ran(level: str) -> None:
    kind, why = judged(of_level(level))
    assert kind == "proved", why
    assert "100.0% of forward and 100.0% of backward matrix FLOPs at step 1 on 1 rank" in why


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problems": ["no second observer: why"]}, "step 1: no second observer: why"),
        ({"unaccounted": {"mylib.mm": 3}}, "mylib.mm can't be counted (3 calls)"),
        ({"audit": "this and that"}, "the two observers disagree: this and that"),
        ({"calls": []}, "no matrix product or convolution was seen in forward"),
        ({"calls": [call(False)]}, "no matrix product or convolution was seen in backward"),
        ({"calls": [call(False, flops=0), call(True)]}, "was seen in forward"),
        ({"parameters": []}, "no floating-point parameters"),
    ],
)
def test_what_could_not_be_seen_is_unknown(change: dict[str, Any], reason: str) -> None:
    for level in ("o1", "o2", "o3"):
        kind, why = judged(of_level(level, **change))
        assert kind == "unknown", why
        assert reason in why


def test_only_what_no_later_step_can_change_is_judged_before_the_end() -> None:
    assert verdict.judge_so_far([report(problems=["blind"])]) == ("unknown", "step 1: blind")
    assert verdict.judge_so_far([of_level("o1", optimizer={"bfloat16": 1})])[0] == "contradicted"
    skipped = of_level("o2", optimizer={})
    assert judged(skipped)[0] == "unknown"
    assert verdict.judge_so_far([skipped])[0] == "proved", "a later step may reach the optimizer"


def test_a_shortfall_is_judged_before_the_end_only_where_nothing_ran_in_half_precision() -> None:
    """Of a report that grows: graphs that are the larger part may run later."""
    for half, kind in ((20, "proved"), (0, "contradicted")):
        halves = [call(backward, flops=half) for backward in (False, True) if half]
        calls = [*halves, *(call(backward, "float32", 100 - half) for backward in (False, True))]
        assert verdict.judge_so_far([report(calls=calls, grows=True)])[0] == kind
        assert judged(report(calls=calls))[0] == "contradicted"


def asked(**entries: dict[str, str]) -> dict[str, Any]:
    return {"asked": {"allow": {}, "deny": {}, "keep_fp32": {}, **entries}}


LISTED = [{"function": "matmul", "dtypes": ["float32"], "calls": 1}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rule": {"deny": ["matmul"]}, **asked(deny={"matmul": "matmul"})}, "amp.deny=[matmul] matched nothing"),
        ({"rule": {"deny": ["matmul"]}, **asked(deny={"matmul": "matmul_v2"})}, "amp.deny=[matmul_v2] matched"),
        ({"rule": {"allow": ["softmax"]}, **asked(allow={"softmax": "softmax"})}, "amp.allow=[softmax] matched"),
        ({"rule": {"keep_fp32": ["head*"]}, **asked(keep_fp32={"head*": "head*"})}, "amp.keep_fp32=[head*] matched"),
    ],
)
def test_an_entry_that_no_observed_step_matched_is_unknown_and_named(change: dict[str, Any], reason: str) -> None:
    kind, why = judged(report(**change), report(step=2, **change))
    assert (kind, reason in why) == ("unknown", True), why
    assert why.count("matched nothing that was observed") == 1, "an operation counts once, whatever its names"
    assert verdict.judge_so_far([report(**change)])[0] == "proved", "a later step may match it"
    told = [report(**change), report(step=2, **change, listed=LISTED, matched=["head*"])]
    if "softmax" not in reason:
        assert judged(*told)[0] == "proved", judged(*told)


def test_what_only_the_evaluation_runs_counts_and_is_no_step() -> None:
    change: dict[str, Any] = {"rule": {"deny": ["softmax"]}, **asked(deny={"softmax": "softmax"})}
    listed = [{"function": "softmax", "dtypes": ["float32"], "calls": 1}]
    seen = report(step=4, evaluation=True, calls=[], optimizer={}, listed=listed, **change)
    kind, why = judged(report(**change), seen, planned=(1,))
    assert (kind, "at step 1 on" in why) == ("proved", True), why
    assert judged(report(**change), seen, planned=(1, 4)) == ("unknown", "step 4 should have been observed and was not")
    half = [{"function": "softmax", "dtypes": ["bfloat16"], "calls": 1}]
    assert judged(report(**change), {**seen, "listed": half})[0] == "contradicted"


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("half", "kind"), [(91, "proved"), (90, "proved"), (89, "contradicted"), (0, "contradicted")])
def test_nine_tenths_have_to_be_half_forward_and_backward_each(backward: bool, half: int, kind: str) -> None:
    mixed = [call(backward, flops=half), call(backward, "float32", flops=100 - half)]
    found, why = judged(report(calls=[*mixed, call(not backward)]))
    assert found == kind, why
    assert "linear in float32" in why, "also where it is proved"


def test_backward_cannot_make_up_for_forward() -> None:
    assert judged(report(calls=[call(False, "float32"), call(True, flops=10**6)]))[0] == "contradicted"


def test_a_shortfall_says_how_to_ask_for_it() -> None:
    narrow = [call(flag, flops=889) for flag in (False, True)]
    wide = [call(flag, "float32", flops=111, functions=["scaled_dot_product_attention"]) for flag in (False, True)]
    _, why = judged(report(calls=[*narrow, *wide]))
    assert why == (
        "step 1: 88.9% of forward and 88.9% of backward ran in bfloat16, but o1 requires 90%; the rest is "
        "scaled_dot_product_attention in float32 (2 calls): torch chooses the kernel of attention; on a CPU attention "
        "with dropout computes in float32 (amp.deny=[scaled_dot_product_attention] or proof.share=0.85 accepts that)"
    )
    _, why = judged(report(calls=[call(False, flops=10), call(False, "float32"), call(True)]))
    assert why.endswith("in other dtypes: linear in float32 (1 call) (amp.deny=[linear] accepts that)")
    _, why = judged(report(calls=[*narrow, *wide], rule={"lists": "refused"}))
    assert why.endswith("computes in float32 (proof.share=0.85 accepts that)"), "around a script there are no lists"
    _, why = judged(report(calls=[call(False, "float32"), call(True)]))
    assert why.endswith("linear in float32 (1 call)"), "nothing ran in half precision"
    _, why = judged(of_level("o3", calls=[call(False, flops=60), call(False, "float32", flops=40), call(True)]))
    assert why.endswith("(1 call) (proof.share=0.6 accepts that)"), "o3 has no lists"


def test_proof_share_decides_how_much_has_to_be_half_and_is_named_where_it_decided() -> None:
    mixed = report(calls=[call(False, flops=86), call(False, "float32", flops=14), call(True)])
    assert verdict.judge([mixed])[0] == verdict.judge([mixed], share=0.87)[0] == "contradicted"
    assert "but proof.share=0.87 requires more" in verdict.judge([mixed], share=0.87)[1]
    kind, why = verdict.judge([mixed], share=0.85)
    assert (kind, why.endswith("; accepted by proof.share=0.85, where the rule is 90%")) == ("proved", True), why
    assert verdict.judge_so_far([mixed], share=0.85)[0] == "proved"
    assert verdict.observed([mixed], share=0.85)["verdict"] == "proved"
    assert "proof.share" not in verdict.judge([report()], share=0.85)[1], "90% ran anyway"
    ninety = report(calls=[call(False, flops=92), call(False, "float32", flops=8), call(True)])
    assert verdict.judge([ninety], share=1.0)[0] == "contradicted"


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": {"bfloat16": 10}},
        {"parameters": [{"group": "other", "dtype": "bfloat16", "elements": 10}]},
        {"reduced": {"bfloat16": 50, "float32": 50}},
        {"float32": {"switches": {}, "arithmetic": {"mm": "tf32"}}},
        {"rule": {"deny": ["linear"]}, "listed": [{"function": "linear", "dtypes": ["bfloat16"], "calls": 1}]},
        {"problems": ["blind"]},
        {"calls": [call(False), call(True, device="cuda")]},
    ],
)
def test_proof_share_affects_no_other_rule(wrong: dict[str, Any]) -> None:
    kind, _ = verdict.judge([report(**wrong)], share=0.01)
    assert kind == verdict.judge([report(**wrong)])[0] != "proved"


def test_proof_share_leaves_o0_without_any_half_precision() -> None:
    calls = [call(False, "float32", flops=10**12), call(False, flops=1), call(True, "float32")]
    assert verdict.judge([of_level("o0", calls=calls)], share=0.01)[0] == "contradicted"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8"])
def test_under_o0_not_one_product_may_be_narrower_than_float32(dtype: str) -> None:
    calls = [call(False, "float32", flops=10**12), call(False, dtype, flops=1), call(True, "float32")]
    kind, why = judged(of_level("o0", calls=calls))
    assert (kind, "o0 is float32" in why) == ("contradicted", True)


def test_the_other_half_precision_does_not_count() -> None:
    assert judged(report(calls=[call(False, "float16"), call(True, "float16")]))[0] == "contradicted"


DENIED = {"rule": {"deny": ["conv2d"]}}


def test_denied_functions_do_not_count_against_the_share() -> None:
    denied = [call(flag, "float32", flops=900, functions=["conv2d"]) for flag in (False, True)]
    kind, why = judged(report(calls=[call(False), call(True), *denied], **DENIED))
    assert kind == "proved", why


@pytest.mark.parametrize("backward", [False, True])
def test_a_denied_function_that_ran_half_is_contradicted(backward: bool) -> None:
    ran = call(backward, flops=1, functions=["conv2d"])
    kind, why = judged(report(calls=[call(False), call(True), ran], **DENIED))
    assert (kind, "conv2d is on amp.deny" in why) == ("contradicted", True)


def test_denied_functions_do_not_hide_others_in_float32() -> None:
    denied = [call(flag, "float32", flops=900, functions=["conv2d"]) for flag in (False, True)]
    assert judged(report(calls=[call(False, "float32"), call(True), *denied], **DENIED))[0] == "contradicted"


KEPT = {"rule": {"keep_fp32": ["head"]}}


def test_kept_modules_do_not_count_against_the_share() -> None:
    kept = [call(flag, "float32", flops=900, kept=True) for flag in (False, True)]
    assert judged(report(calls=[call(False), call(True), *kept], **KEPT))[0] == "proved"


@pytest.mark.parametrize("backward", [False, True])
def test_a_kept_module_that_ran_half_is_contradicted(backward: bool) -> None:
    kind, why = judged(report(calls=[call(False), call(True), call(backward, flops=1, kept=True)], **KEPT))
    assert (kind, "amp.keep_fp32=[head] keeps it in float32" in why) == ("contradicted", True)


def test_nothing_left_to_run_half_is_unknown() -> None:
    kept = [call(flag, "float32", kept=True) for flag in (False, True)]
    kind, why = judged(report(calls=kept, **KEPT))
    assert (kind, "all of it is denied or kept" in why) == ("unknown", True)


def compiled(backward: bool, dtype: str, flops: int, **other: Any) -> dict[str, Any]:
    """A product of which compiled code doesn't tell the module."""
    return call(backward, dtype, flops, **{"compiled": True, "kept": None, **other})


def test_gradients_that_cannot_be_told_apart_are_excused_as_far_as_kept_modules_can_have_them() -> None:
    forward = [call(False, flops=1000), call(False, "float32", flops=100, kept=True)]
    for unknown_gradients, kind in ((200, "proved"), (250, "proved"), (600, "contradicted")):
        backward = [call(True, flops=2000), compiled(True, "float32", unknown_gradients)]
        found, why = judged(report(calls=[*forward, *backward], **KEPT))
        assert found == kind, why


def test_forward_products_that_cannot_be_told_apart_are_unknown_where_it_matters() -> None:
    backward = call(True)
    few, many = compiled(False, "float32", 7), compiled(False, "float32", 50)
    assert judged(report(calls=[call(False), few, backward], **KEPT))[0] == "proved"
    for doubtful in ([many], [few, call(False, "float32", 7)]):
        kind, why = judged(report(calls=[call(False), *doubtful, backward], **KEPT))
        assert (kind, "the function or module of these isn't known" in why) == ("unknown", True)


def test_a_half_product_that_may_be_of_a_denied_function_is_unknown() -> None:
    perhaps = compiled(False, "bfloat16", 100, kept=False, functions=["linear", "matmul"])
    kind, why = judged(report(calls=[perhaps, call(False), call(True)], rule={"deny": ["matmul"]}))
    assert (kind, "may be of a function on amp.deny: mm in bfloat16" in why) == ("unknown", True)


def listed(function: str, *dtypes: str) -> dict[str, Any]:
    return {"function": function, "dtypes": list(dtypes), "calls": 1}


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([listed("gelu", "float32")], "proved"),
        ([listed("gelu", "bfloat16")], "contradicted"),
        ([listed("gelu", "float32", "bfloat16")], "contradicted"),
        ([listed("gelu", "float32"), listed("gelu", "bfloat16")], "contradicted"),
        ([], "proved"),
    ],
)
def test_a_denied_function_has_no_half_operand(entries: list[dict[str, Any]], kind: str) -> None:
    assert judged(report(listed=entries, rule={"deny": ["gelu"]}))[0] == kind


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([listed("softmax", "bfloat16")], "proved"),
        ([listed("softmax", "bfloat16", "float32")], "proved"),
        ([listed("softmax", "bfloat16"), listed("softmax", "float32")], "proved"),
        ([listed("softmax", "float32")], "contradicted"),
        ([listed("softmax", "float32", "bfloat16")], "contradicted"),
        ([listed("softmax", "float16")], "contradicted"),
        ([], "proved"),
    ],
)
def test_an_allowed_function_runs_on_half_operands(entries: list[dict[str, Any]], kind: str) -> None:
    assert judged(report(listed=entries, rule={"allow": ["softmax"]}))[0] == kind


def test_a_listed_function_in_compiled_code_is_unknown_unless_its_products_are_seen() -> None:
    calls = [call(flag, compiled=True) for flag in (False, True)]
    kind, why = judged(report(calls=calls, rule={"allow": ["gelu"]}))
    assert (kind, "compiled code doesn't show how it ran" in why) == ("unknown", True)
    denied = [call(flag, "float32", compiled=True, functions=["conv2d"]) for flag in (False, True)]
    assert judged(report(calls=[*calls, *denied], **DENIED))[0] == "proved"


def test_a_listed_function_whose_calls_cannot_be_seen_is_unknown() -> None:
    assert judged(report(unseen=["interpolate"], rule={"deny": ["interpolate"]}))[0] == "unknown"


@pytest.mark.parametrize(
    ("level", "group", "dtype", "kind"),
    [
        ("o0", "other", "bfloat16", "contradicted"),
        ("o0", "other", "float64", "contradicted"),
        ("o1", "other", "bfloat16", "contradicted"),
        ("o1", "norm", "bfloat16", "contradicted"),
        ("o2", "other", "float32", "contradicted"),
        ("o2", "other", "float16", "contradicted"),
        ("o2", "norm", "bfloat16", "contradicted"),
        ("o2", "kept", "bfloat16", "contradicted"),
        ("o2", "kept", "float32", "proved"),
        ("o3", "other", "float32", "contradicted"),
        ("o3", "norm", "float32", "contradicted"),
        ("o3", "norm", "bfloat16", "proved"),
        ("o3", "kept", "float32", "proved"),
    ],
)
def test_parameters_have_the_dtype_that_the_level_gives_them(level: str, group: str, dtype: str, kind: str) -> None:
    honest = of_level(level)
    honest["parameters"].append({"group": group, "dtype": dtype, "elements": 1})
    found, why = judged(honest)
    assert found == kind, why


@pytest.mark.parametrize(
    ("level", "masters", "stepped", "kind"),
    [
        ("o0", False, {"float32": 1}, "proved"),
        ("o0", False, {"bfloat16": 1}, "contradicted"),
        ("o1", False, {}, "proved"),
        ("o1", False, {"bfloat16": 1}, "contradicted"),
        ("o2", True, {"float32": 1}, "proved"),
        ("o2", True, {"bfloat16": 1}, "contradicted"),
        ("o2", True, {"float32": 1, "bfloat16": 1}, "contradicted"),
        ("o2", True, {}, "unknown"),
        ("o2", False, {"bfloat16": 1, "float32": 1}, "proved"),
        ("o2", False, {"float32": 1}, "contradicted"),
        ("o3", False, {"bfloat16": 1}, "proved"),
        ("o3", False, {"float32": 1}, "contradicted"),
    ],
)
def test_the_optimizer_steps_masters_where_the_level_has_them(
    level: str, masters: bool, stepped: dict[str, int], kind: str
) -> None:
    found, why = judged(of_level(level, optimizer=stepped, rule={"masters": masters}))
    assert found == kind, why


def test_masters_may_be_seen_at_any_of_the_steps() -> None:
    skipped, taken = of_level("o2", optimizer={}), of_level("o2", step=2)
    assert judged(skipped)[0] == "unknown"
    assert judged(skipped, taken)[0] == "proved"


@pytest.mark.parametrize(
    ("level", "tf32", "found", "kind"),
    [
        ("o0", False, "float32", "proved"),
        ("o0", False, "tf32", "contradicted"),
        ("o0", False, "bfloat16", "contradicted"),
        ("o0", True, "tf32", "proved"),
        ("o0", True, "float32", "contradicted"),
        ("o0", True, "bfloat16", "contradicted"),
        ("o1", False, "tf32", "contradicted"),
        ("o1", True, "tf32", "proved"),
        ("o1", True, "float32", "proved"),
        ("o1", True, "bfloat16", "contradicted"),
    ],
)
def test_float32_products_are_rounded_only_as_was_asked_for(level: str, tf32: bool, found: str, kind: str) -> None:
    float32 = {"switches": {}, "arithmetic": {"matmul": found, "convolution": found}}
    got, why = judged(of_level(level, float32=float32, rule={"tf32": tf32}))
    assert got == kind, why


@pytest.mark.parametrize(
    ("level", "tf32", "setting", "kind"),
    [
        ("o0", False, "ieee", "proved"),
        ("o0", False, "none", "proved"),
        ("o0", False, "tf32", "contradicted"),
        ("o0", False, "bf16", "contradicted"),
        ("o0", True, "tf32", "proved"),
        ("o1", False, "tf32", "proved"),
    ],
)
def test_under_o0_no_switch_may_let_float32_be_rounded(level: str, tf32: bool, setting: str, kind: str) -> None:
    arithmetic = {"matmul": "tf32" if tf32 else "float32"}
    float32 = {"switches": {"matmul.fp32_precision": setting}, "arithmetic": arithmetic}
    got, why = judged(of_level(level, float32=float32, rule={"tf32": tf32}))
    assert got == kind, why


def test_tf32_asked_for_under_o0_needs_a_float32_product_to_show_in() -> None:
    empty = {"switches": {}, "arithmetic": {}}
    assert judged(of_level("o0", float32=empty, rule={"tf32": True}))[0] == "proved"


def test_products_on_another_device_are_contradicted() -> None:
    kind, why = judged(report(rule={"device": "cuda"}))
    assert (kind, "device=cuda, but matrix products ran on cpu" in why) == ("contradicted", True)


def test_every_rank_has_to_be_seen_at_every_step() -> None:
    ranks = [report(rank=rank, world_size=3, step=step) for step in (1, 5) for rank in range(3)]
    assert judged(*ranks)[0] == "proved"
    kind, why = judged(*ranks[:-1])
    assert (kind, why) == ("unknown", "step 5 was not observed on rank 2")


def test_a_run_may_be_resumed_on_another_number_of_ranks() -> None:
    before = [report(rank=rank, world_size=4, step=1) for rank in range(4)]
    after = [report(rank=rank, world_size=2, step=5) for rank in range(2)]
    assert judged(*before, *after)[0] == "proved"
    assert judged(*before[:3], *after)[0] == "unknown"


def test_one_rank_contradicts_all() -> None:
    wrong = report(rank=1, world_size=2, calls=[call(False, "float32"), call(True)])
    kind, why = judged(report(rank=0, world_size=2), wrong)
    assert kind == "contradicted"
    assert why.startswith("step 1 on rank 1: 0.0% of forward")


def test_ranks_told_different_things_are_contradicted() -> None:
    reports = [report(rank=0, world_size=2), report(rank=1, world_size=2, rule={"keep_fp32": ["head"]})]
    kind, why = judged(*reports)
    assert (kind, "had the same precision settings" in why) == ("contradicted", True)


def test_a_planned_step_that_was_not_observed_is_unknown() -> None:
    assert judged(report(step=1), report(step=9), planned=(1, 9))[0] == "proved"
    assert judged(report(step=1), planned=(1, 9)) == ("unknown", "step 9 should have been observed and was not")


def test_no_report_is_unknown() -> None:
    assert judged() == ("unknown", "no step was observed")


def test_a_contradiction_outweighs_what_is_unknown() -> None:
    both = report(audit="x", calls=[call(False, "float32"), call(True)])
    assert judged(both)[0] == "contradicted"


def test_many_reasons_are_cut_short() -> None:
    problems = [f"problem {number}" for number in range(9)]
    _, why = judged(report(problems=problems))
    assert why.count("problem") == 4
    assert why.endswith("; and 5 more")


@pytest.mark.parametrize(
    ("level", "reduced", "judgement"),
    [
        ("o2", {"bfloat16": 900, "float32": 100}, "contradicted"),
        ("o2", {"float32": 1000}, "proved"),
        ("o2", {"bfloat16": 5, "float32": 995}, "proved"),
        ("o1", {"bfloat16": 1000}, "contradicted"),
        ("o3", {"bfloat16": 1000}, "proved"),
        ("o2", {}, "proved"),
    ],
)
def test_gradients_are_summed_over_the_ranks_in_float32(level: str, reduced: dict[str, int], judgement: str) -> None:
    seen = of_level(level, reduced=reduced)
    found, why = judged(seen)
    assert found == judgement, why
    assert ("summed over the ranks in" in why) == bool((reduced and level != "o3") or (reduced and found == "proved"))
    assert verdict.observed([seen])["reduce_dtype"] == (
        max(reduced, key=lambda each: reduced[each]) if reduced else None
    )


def test_observed_has_the_fields_of_the_result() -> None:
    last = of_level("o2", step=2, float32={"switches": {}, "arithmetic": {"matmul": "float32"}})
    found = verdict.observed([last, of_level("o2")])
    assert {name: each for name, each in found.items() if name != "why"} == {
        "verdict": "proved",
        "dtype": "bfloat16",
        "half_flop_share": 1.0,
        "param_dtypes": {"bfloat16": 10, "float32": 2},
        "reduce_dtype": None,
        "gather_dtype": None,
        "state_dtype": None,
        "tf32": False,
        "xla_clusters": None,
        "device": "cpu",
    }


@pytest.mark.parametrize(("level", "found"), [("o1", "unknown"), ("o2", "unknown")])
def test_a_run_that_never_updated_a_weight_is_not_proved(level: str, found: str) -> None:
    seen = verdict.without_updates(verdict.observed([of_level(level)]), 8)
    assert seen["verdict"] == found
    assert seen["why"].startswith("no weight was updated: all 8 steps overflowed and were skipped")
    assert seen.keys() == verdict.observed([]).keys()


def test_a_contradiction_stays_one_where_no_weight_was_updated() -> None:
    seen = verdict.observed([report(calls=[call(False, "float32"), call(True)])])
    assert verdict.without_updates(seen, 8) == seen


def test_observed_of_nothing_has_the_same_fields() -> None:
    assert verdict.observed([]).keys() == verdict.observed([report()]).keys()
    assert verdict.observed([])["verdict"] == "unknown"


def test_the_share_is_of_all_work_whatever_was_denied() -> None:
    denied = [call(flag, "float32", flops=300, functions=["conv2d"]) for flag in (False, True)]
    found = verdict.observed([report(calls=[call(False), call(True), *denied], **DENIED)])
    assert (found["verdict"], found["half_flop_share"], found["dtype"]) == ("proved", 0.25, "float32")


EITHER = {"either": ["MatMul"]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_product_on_infer_or_clear_may_run_in_either_dtype(dtype: str) -> None:
    left_open = [call(False, dtype, flops=900, functions=["MatMul"]), call(True, dtype, 900, functions=["MatMul"])]
    found = verdict.observed([report(rule=EITHER, calls=[call(False), call(True), *left_open])])
    assert found["verdict"] == "proved"


def test_where_all_products_are_on_infer_or_clear_nothing_is_proved() -> None:
    calls = [call(backward, functions=["MatMul"]) for backward in (False, True)]
    found = verdict.observed([report(rule=EITHER, calls=calls)])
    assert found["verdict"] == "unknown"
    assert "all products in forward are on lists that allow both dtypes" in found["why"]


EITHER_ATTENTION = {"either": ["scaled_dot_product_attention"]}
ATTENTION = ["scaled_dot_product_attention"]


def perhaps_attention(backward: bool, dtype: str, flops: int) -> dict[str, Any]:
    """Of compiled code, which may have come from a linear layer or from attention."""
    return call(backward, dtype, flops, functions=["linear", *ATTENTION], compiled=True)


@pytest.mark.parametrize("backward", [False, True])
def test_compiled_float32_that_may_be_of_a_function_due_in_half_leaves_the_verdict_open(backward: bool) -> None:
    calls = [call(False), call(True), perhaps_attention(backward, "float32", 900)]
    found = verdict.observed([report(rule=EITHER_ATTENTION, calls=calls)])
    assert found["verdict"] == "unknown"
    assert "the function of these isn't known, and may be one due in bfloat16: mm in float32" in found["why"]


def test_compiled_half_precision_that_may_be_of_either_function_is_right() -> None:
    calls = [perhaps_attention(False, "bfloat16", 100), perhaps_attention(True, "bfloat16", 200)]
    calls += [call(flag, "float32", 900, functions=ATTENTION, compiled=True) for flag in (False, True)]
    found = verdict.observed([report(rule=EITHER_ATTENTION, calls=calls)])
    assert found["verdict"] == "proved", found["why"]


def test_compiled_half_precision_that_may_be_attention_does_not_make_up_for_linear_in_float32() -> None:
    calls = [call(False), call(True), call(False, "float32", 20), perhaps_attention(False, "bfloat16", 900)]
    assert verdict.observed([report(rule=EITHER_ATTENTION, calls=calls)])["verdict"] == "unknown"


def test_gradients_of_attention_in_float32_are_expected_where_its_forward_was() -> None:
    attention = call(False, "float32", 400, functions=ATTENTION, compiled=True)
    calls = [call(False), call(True), attention, perhaps_attention(True, "float32", 1000)]
    assert verdict.observed([report(rule=EITHER_ATTENTION, calls=calls)])["verdict"] == "proved"
    calls[-1] = perhaps_attention(True, "float32", 1100)
    assert verdict.observed([report(rule=EITHER_ATTENTION, calls=calls)])["verdict"] == "unknown"


def test_an_entry_of_infer_that_matched_nothing_proves_nothing() -> None:
    asked = {"allow": {}, "deny": {}, "infer": {"Softmax": "Softmax"}, "clear": {}, "keep_fp32": {}}
    found = verdict.observed([report(rule={"either": ["Softmax"]}, asked=asked)])
    assert found["verdict"] == "unknown"
    assert "amp.infer=[Softmax] matched nothing" in found["why"]
    seen = [{"function": "Softmax", "dtypes": ["float32"], "calls": 1}]
    assert verdict.observed([report(rule={"either": ["Softmax"]}, asked=asked, listed=seen)])["verdict"] == "proved"


def test_a_gradient_that_a_compiled_step_does_not_have_is_no_entry_of_the_users() -> None:
    asked = {"allow": {}, "deny": {"Conv2D": "Conv2D"}, "keep_fp32": {}}
    rule = {"deny": ["Conv2D", "Conv2DBackpropInput"]}
    calls = [call(False, compiled=True), call(True, flops=200, compiled=True)]
    calls.append(call(False, "float32", functions=["Conv2D"], compiled=True))
    assert verdict.observed([report(rule=rule, asked=asked, calls=calls)])["verdict"] == "proved"
