"""One observed step by its level's rule: reports in which only the thing named is broken."""

from __future__ import annotations

import pytest

from amp_launcher.precision import verdict
from tests.amp_launcher.precision.reports import both, call, expect, judged, listed, report

LEVELS = ("o0", "o1", "o2", "o3")
DENIED = {"deny": ["conv2d"]}
KEPT = {"keep_fp32": ["head"]}
ATTENTION = "scaled_dot_product_attention"


@pytest.mark.parametrize("level", LEVELS)
def test_an_honest_report_is_proved_and_says_what_ran(level):
    expect("proved", "100.0% of forward and 100.0% of backward matrix FLOPs at step 1 on 1 rank", report(level))


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problems": ["no second observer: why"]}, "step 1: no second observer: why"),
        ({"unaccounted": {"mylib.mm": 3}}, "proof.ignore=[mylib.*]"),
        ({"unaccounted": {"aten._trilinear.default": 3}}, "aten._trilinear.default can't be counted (3 calls)"),
        ({"old_weights": 2}, "forward multiplied old copies of weights, made before the weights changed (2 calls)"),
        ({"audit": "this and that"}, "the two observers disagree: this and that"),
        ({"calls": []}, "no matrix product or convolution was seen in forward"),
        ({"calls": [call(False)]}, "no matrix product or convolution was seen in backward"),
        ({"calls": [call(False, flops=0), call(True)]}, "was seen in forward"),
        ({"parameters": []}, "no floating-point parameters"),
    ],
)
def test_what_could_not_be_seen_is_unknown(level, change, reason):
    expect("unknown", reason, report(level, **change))


def uncertain(backward, dtype, flops, **other):
    """A product of compiled code, which doesn't show its module."""
    return call(backward, dtype, flops, **{"compiled": True, "kept": None, **other})


def perhaps_attention(backward, dtype, flops):
    return call(backward, dtype, flops, functions=["linear", ATTENTION], compiled=True)


def test_another_dtype_device_or_direction_does_not_make_up_for_half_precision():
    expect("contradicted", "0.0% of forward", report(calls=[call(False, "float32"), call(True, flops=10**6)]))
    expect("contradicted", "linear in float16", report(calls=both("float16")))
    expect("contradicted", "device=cuda, but matrix products ran on cpu", report(rule={"device": "cuda"}))


def test_a_denied_function_does_not_count_hides_no_other_and_may_not_run_half():
    denied = both("float32", 900, functions=["conv2d"])
    expect("proved", "kept in float32 as requested: conv2d", report(calls=[*both(), *denied], rule=DENIED))
    expect("contradicted", "linear in float32", report(calls=[*both("float32"), *denied], rule=DENIED))
    for product in both(flops=1, functions=["conv2d"]):
        expect("contradicted", "conv2d is on amp.deny", report(calls=[*both(), product], rule=DENIED))


def test_a_kept_module_does_not_count_and_may_not_run_half():
    kept = both("float32", 900, kept=True)
    expect("proved", "", report(calls=[*both(), *kept], rule=KEPT))
    expect("unknown", "all of it is denied or kept", report(calls=kept, rule=KEPT))
    for product in both(flops=1, kept=True):
        why = "amp.keep_fp32=[head] keeps it in float32"
        expect("contradicted", why, report(calls=[*both(), product], rule=KEPT))


@pytest.mark.parametrize(("flops", "kind"), [(200, "proved"), (250, "proved"), (600, "contradicted")])
def test_gradients_of_unknown_modules_are_excused_as_far_as_kept_modules_can_have_them(flops, kind):
    forward = [call(False, flops=1000), call(False, "float32", kept=True)]
    expect(kind, "", report(calls=[*forward, call(True, flops=2000), uncertain(True, "float32", flops)], rule=KEPT))


def test_forward_products_of_an_unknown_module_or_function_are_unknown_where_it_matters():
    few, many = uncertain(False, "float32", 7), uncertain(False, "float32", 50)
    expect("proved", "", report(calls=[*both(), few], rule=KEPT))
    for doubtful in ([many], [few, call(False, "float32", 7)]):
        why = "the function or module of these isn't known"
        expect("unknown", why, report(calls=[*both(), *doubtful], rule=KEPT))
    exactly = [call(False, flops=90), uncertain(False, "float32", 10), call(True)]
    expect("proved", "", report(calls=exactly, rule=KEPT))
    kept = call(False, "float32", 10**4, kept=True, functions=["conv2d"])
    expect("unknown", "isn't known: linear in float32 (1 call)", report(calls=[*both(), many, kept], rule=KEPT))
    wrong = [call(False, flops=90), call(False, "float32", 10), uncertain(False, "float32", 50), call(True)]
    expect("unknown", "", report(calls=wrong, rule=KEPT))  # 90% of what is certain ran half
    denied = call(False, "float32", functions=["conv2d"], kept=False)
    for dtype, flops, functions in (("float32", 7, ["linear", "conv2d"]), ("bfloat16", 100, ["linear"])):
        seen = [denied, uncertain(False, dtype, flops, functions=functions)]
        expect("proved", "", report(calls=[*both(), *seen], rule={**DENIED, **KEPT}))
    perhaps = uncertain(False, "bfloat16", 100, kept=False, functions=["linear", "conv2d"])
    why = "may be of a function on amp.deny: mm in bfloat16"
    expect("unknown", why, report(calls=[*both(), perhaps], rule=DENIED))


def test_a_function_on_infer_or_clear_may_run_in_either_dtype_and_proves_nothing_alone():
    rule = {"either": ["MatMul"]}
    for dtype in ("bfloat16", "float32"):
        expect("proved", "", report(rule=rule, calls=[*both(), *both(dtype, 900, functions=["MatMul"])]))
    why = "all products in forward are on lists that allow both dtypes"
    expect("unknown", why, report(rule=rule, calls=both(functions=["MatMul"])))


def test_compiled_products_of_one_of_two_functions_prove_only_what_either_would():
    rule, float32 = {"either": [ATTENTION]}, both("float32", 900, functions=[ATTENTION], compiled=True)
    why = "the function of these isn't known, and may be one due in bfloat16: mm in float32"
    for backward in (False, True):
        expect("unknown", why, report(rule=rule, calls=[*both(), perhaps_attention(backward, "float32", 900)]))
    half = [perhaps_attention(False, "bfloat16", 100), perhaps_attention(True, "bfloat16", 200)]
    expect("proved", "", report(rule=rule, calls=[*half, *float32]))
    not_made_up_for = [call(False, "float32", 20), perhaps_attention(False, "bfloat16", 900)]
    expect("unknown", "one due in bfloat16: mm in bfloat16", report(rule=rule, calls=[*both(), *not_made_up_for]))
    two = [perhaps_attention(False, dtype, 900) for dtype in ("bfloat16", "float32")]
    expect("unknown", "one due in bfloat16: mm in float32", report(rule=rule, calls=[*both(), *two]))
    forward = call(False, "float32", 400, functions=[ATTENTION], compiled=True)
    for gradients, kind in ((1000, "proved"), (1100, "unknown")):
        wide = perhaps_attention(True, "float32", gradients)
        expect(kind, "", report(rule=rule, calls=[*both(), forward, wide]))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("half", "kind"), [(91, "proved"), (90, "proved"), (89, "contradicted"), (0, "contradicted")])
def test_nine_tenths_of_forward_and_of_backward_have_to_be_half_and_the_rest_is_named(backward, half, kind):
    mixed = [call(backward, flops=half), call(backward, "float32", flops=100 - half)]
    expect(kind, "linear in float32", report(calls=[*mixed, call(not backward)]))


@pytest.mark.parametrize("level", ["o1", "o2"])
@pytest.mark.parametrize(
    ("rule", "way"), [({}, "float16, or amp.keep_fp32=[NAME] for the layer"), ({"lists": "refused"}, "float16")]
)
def test_a_recurrent_layer_that_autocast_gave_float16_is_named_with_the_way_out(level, rule, way):
    layers = [
        call(backward, "float16", operation=f"_cudnn_rnn{'_backward' * backward}", functions=["lstm"])
        for backward in (False, True)
    ]
    kind, why = judged(report(level, rule=rule, calls=layers))
    assert kind == "contradicted"
    assert why.endswith(
        "lstm in float16 (2 calls): torch's autocast gives LSTM, GRU and RNN layers of cuDNN float16, also where it is "
        f"on for bfloat16; say amp.dtype={way}"
    )
    narrow = [call(backward, "float16") for backward in (False, True)]
    assert "cuDNN" not in judged(report(level, calls=narrow))[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("operation", "function", "dtype"),
    [
        ("bmm", ATTENTION, "float32"),  # on an H200 under bfloat16 autocast too, where it had no dimension of heads
        ("_euclidean_dist", "cdist", "float32"),
        ("bmm", "matrix_exp", "float32"),
        ("mm", "matmul", "complex64"),
    ],
)
def test_what_has_no_half_precision_is_counted_apart_and_named(device, operation, function, dtype):
    wide = both(dtype, 900, operation=operation, functions=[function])
    ran = [{**entry, "device": device} for entry in (*both(), *wide)]
    kind, why = judged(report(rule={"device": device}, calls=ran))
    assert kind == "proved"
    assert f"counted apart, as torch has no half precision of it here: {function} in {dtype} (2 calls)" in why


def test_attention_that_is_denied_and_distances_beyond_o1_are_not_counted_apart():
    attention = both("float32", 900, operation="bmm", functions=[ATTENTION])
    assert "counted apart" not in judged(report(rule={"deny": [ATTENTION]}, calls=[*both(), *attention]))[1]
    distances = both("float32", 900, functions=["cdist"])
    expect("contradicted", "cdist in float32", report("o2", calls=[*both(), *distances]))


def test_a_direction_in_which_all_is_counted_apart_proves_nothing():
    apart = call(False, "float32", operation="bmm", functions=[ATTENTION])
    expect("unknown", "no product in forward has a half type", report(calls=[apart, call(True)]))


def test_a_blind_observer_is_the_only_reason_and_one_that_saw_something_is_judged_by_it():
    assert judged(report(problems=["blind"], calls=[]))[1] == "step 1: blind"
    expect("contradicted", "", report(problems=["blind"], calls=both("float32")))


@pytest.mark.parametrize(
    ("kind", "level", "dtype", "change"),
    [
        ("unknown", "o1", "float16", {"unscaled": False}),
        ("proved", "o1", "float16", {"unscaled": True}),
        ("proved", "o1", "float16", {}),  # the framework doesn't tell
        ("proved", "o1", "float16", {"unscaled": False, "optimizer": {}}),
        ("proved", "o1", "bfloat16", {"unscaled": False}),
        ("proved", "o2", "float16", {"unscaled": False}),
    ],
)
def test_float16_gradients_that_step_weights_under_o1_need_a_loss_scale(kind, level, dtype, change):
    parameters = [{"group": "other", "dtype": dtype if level == "o2" else "float32", "elements": 10}]
    seen = {"calls": both(dtype), "parameters": parameters, **change}
    expect(kind, "no loss scale" * (kind == "unknown"), report(level, rule={"dtype": dtype, "scaled": True}, **seen))
    if kind == "unknown":
        expect("proved", "", report(level, rule={"dtype": dtype}, **seen))
        forward_alone = [call(False, dtype), call(True, "float32", kept=True), call(True, "bfloat16")]
        assert (
            "no loss scale"
            not in judged(report(level, rule={"dtype": dtype, "scaled": True}, **{**seen, "calls": forward_alone}))[1]
        )


def test_adapters_and_what_they_leave_frozen_have_the_dtype_they_were_loaded_in_at_every_level_but_o0():
    for groups in (["frozen"], ["adapter", "frozen"]):
        more = [{"group": group, "dtype": "bfloat16", "elements": 5} for group in groups]
        for level in LEVELS:
            kind = "contradicted" if level == "o0" else "proved"
            expect(kind, "", report(level, parameters=[*report(level)["parameters"], *more]))
    parameters = [{"group": "adapter", "dtype": "float32", "elements": 5}, {**more[-1], "elements": 90}]
    expect("proved", "; 5 float32 weights train beside frozen bfloat16 ones", report(parameters=parameters))


def test_a_float64_parameter_is_told_what_leaves_it_alone():
    for dtype in ("float64", "float16"):
        _, why = judged(report(parameters=[{"group": "other", "dtype": dtype, "elements": 1}]))
        assert ("amp=o0 leaves float64 as it is" in why) is (dtype == "float64")


def test_a_shortfall_says_how_to_ask_for_it():
    narrow, wide = both(flops=889), both("float32", 111, functions=[ATTENTION])
    float32 = [{"group": "other", "dtype": "float32", "elements": 10}]
    assert judged(report(calls=[*narrow, *wide]))[1] == (
        "step 1: 88.9% of forward and 88.9% of backward ran in bfloat16, but o1 requires 90%; the rest is "
        "scaled_dot_product_attention in float32 (2 calls): torch chooses the kernel of attention "
        "(amp.deny=[scaled_dot_product_attention] or proof.share=0.85 accepts that)"
    )
    mostly = [call(False, flops=60), call(False, "float32", flops=40), call(True)]
    half = [call(False, flops=50), call(False, "float32", flops=50), call(True)]
    for expected, seen in (
        (
            "in other dtypes: linear in float32 (1 call) (amp.deny=[linear] accepts that)",
            report(calls=[call(False, flops=10), call(False, "float32"), call(True)]),
        ),
        (
            "the kernel of attention (proof.share=0.85 accepts that)",  # around a script there are no lists
            report(calls=[*narrow, *wide], rule={"lists": "refused"}),
        ),
        ("linear in float32 (1 call)", report(calls=[call(False, "float32"), call(True)])),  # nothing ran half
        ("(1 call) (proof.share=0.6 accepts that)", report("o3", calls=mostly)),  # o3 has no lists
        ("linear in float32 (1 call)", report("o3", calls=half)),  # and most of it has to be half
        ("(amp.deny=[linear] accepts that)", report("o2", calls=half)),
        ("linear in float32 (1 call)", report("o2", calls=half, rule={"float32_parameters": True}, parameters=float32)),
        (
            "(amp.deny=[linear] accepts that)",
            report("o1", calls=half, rule={"float32_parameters": True}),
        ),
    ):
        assert judged(seen)[1].endswith(expected)


@pytest.mark.parametrize("share", [0.01, 0.9])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8"])
def test_under_o0_not_one_product_may_be_narrower_than_float32(dtype, share):
    calls = [*both("float32", 10**12), call(False, dtype, flops=1)]
    expect("contradicted", "o0 is float32", report("o0", calls=calls), share=share)


def test_a_shortfall_is_judged_before_the_end_only_where_nothing_ran_in_half_precision():
    """Of a report that grows: graphs that are the larger part may run later."""
    for half, kind in ((20, "proved"), (0, "contradicted")):
        calls = [*(both(flops=half) if half else ()), *both("float32", 100 - half)]
        assert verdict.judge_so_far([report(calls=calls, grows=True)])[0] == kind
        assert judged(report(calls=calls))[0] == "contradicted"


ALLOW, DENY = {"allow": ["softmax"]}, {"deny": ["softmax"]}


@pytest.mark.parametrize(
    ("rule", "proved", "contradicted"),
    [
        (DENY, ["", "float32"], ["bfloat16", "float32 bfloat16", "float32, bfloat16"]),
        (
            ALLOW,
            ["", "bfloat16", "bfloat16 float32", "bfloat16, float32"],
            ["float32", "float32 bfloat16", "float16"],
        ),
    ],
)
def test_a_denied_function_has_no_half_operand_and_an_allowed_one_ran_on_them(rule, proved, contradicted):
    """Operands of a call are separated by blanks, calls by commas."""
    for kind, runs in (("proved", proved), ("contradicted", contradicted)):
        for calls in runs:
            entries = [listed("softmax", *call.split()) for call in calls.split(",") if call]
            expect(kind, "", report(listed=entries, rule=rule))


def test_a_listed_function_in_compiled_code_is_unknown_unless_its_products_are_seen():
    calls = both(compiled=True)
    expect("unknown", "compiled code doesn't show how it ran", report(calls=calls, rule=ALLOW))
    denied = both("float32", compiled=True, functions=["conv2d"])
    expect("proved", "", report(calls=[*calls, *denied], rule=DENIED))


def test_a_listed_function_whose_calls_cannot_be_seen_is_unknown():
    expect("unknown", "interpolate is on amp.deny", report(unseen=["interpolate"], rule={"deny": ["interpolate"]}))


def test_a_gradient_that_a_compiled_step_does_not_have_is_no_entry_of_the_users():
    asked = {"allow": {}, "deny": {"Conv2D": "Conv2D"}, "keep_fp32": {}}
    calls = [*both(compiled=True), call(False, "float32", functions=["Conv2D"], compiled=True)]
    expect("proved", "", report(rule={"deny": ["Conv2D", "Conv2DBackpropInput"]}, asked=asked, calls=calls))


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_have_the_dtype_that_the_level_gives_them(level):
    half = {"o2": ("other",), "o3": ("other", "norm")}.get(level, ())
    honest = report(level)
    for group in ("other", "norm", "kept"):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            right = dtype == ("bfloat16" if group in half else "float32") or (level, dtype) == ("o0", "float64")
            more = {"group": group, "dtype": dtype, "elements": 1}
            parameters = [*honest["parameters"], more]
            expect("proved" if right else "contradicted", "", report(level, parameters=parameters))


@pytest.mark.parametrize(
    ("level", "masters", "proved", "contradicted"),
    [
        ("o0", False, ["float32", "float64"], ["bfloat16", "float32 bfloat16"]),
        ("o1", False, ["", "float32"], ["bfloat16", "float64"]),
        ("o2", True, ["float32"], ["bfloat16", "float32 bfloat16"]),
        ("o2", False, ["bfloat16 float32", "bfloat16"], ["float32"]),
        ("o3", False, ["bfloat16"], ["float32"]),
    ],
)
def test_the_optimizer_steps_masters_where_the_level_has_them(level, masters, proved, contradicted):
    for kind, dtypes in (("proved", proved), ("contradicted", contradicted)):
        for stepped in dtypes:
            optimizer = dict.fromkeys(stepped.split(), 1)
            expect(kind, "", report(level, optimizer=optimizer, rule={"masters": masters}))


@pytest.mark.parametrize(
    ("level", "tf32", "proved", "contradicted"),
    [
        ("o0", False, ["float32"], ["tf32", "bfloat16"]),
        ("o0", True, ["tf32", None], ["float32", "bfloat16"]),
        ("o1", False, ["float32"], ["tf32"]),
        ("o1", True, ["tf32", "float32"], ["bfloat16"]),
    ],
)
def test_float32_products_are_rounded_only_as_was_asked_for(level, tf32, proved, contradicted):
    for kind, roundings in (("proved", proved), ("contradicted", contradicted)):
        for rounded_to in roundings:
            arithmetic = dict.fromkeys(("matmul", "convolution"), rounded_to) if rounded_to else {}
            expect(kind, "", report(level, float32={"switches": {}, "arithmetic": arithmetic}, rule={"tf32": tf32}))


def test_under_o0_no_switch_may_let_float32_be_rounded():
    def switched(level, tf32, setting):
        arithmetic = {"matmul": "tf32" if tf32 else "float32"}
        float32 = {"switches": {"matmul.fp32_precision": setting}, "arithmetic": arithmetic}
        return report(level, float32=float32, rule={"tf32": tf32})

    for setting, kind in (("ieee", "proved"), ("none", "proved"), ("tf32", "contradicted"), ("bf16", "contradicted")):
        expect(kind, "", switched("o0", False, setting))
    expect("proved", "", switched("o0", True, "tf32"))
    expect("proved", "", switched("o1", False, "tf32"))


@pytest.mark.parametrize(
    ("level", "reduced", "kind", "dtype"),
    [
        ("o2", {"bfloat16": 900, "float32": 100}, "contradicted", "bfloat16"),
        ("o2", {"float32": 1000}, "proved", "float32"),
        ("o2", {"bfloat16": 5, "float32": 995}, "proved", "float32"),
        ("o1", {"bfloat16": 1000}, "contradicted", "bfloat16"),
        ("o3", {"bfloat16": 1000}, "proved", "bfloat16"),
        ("o2", {}, "proved", None),
    ],
)
def test_gradients_are_summed_over_the_ranks_in_float32(level, reduced, kind, dtype):
    expect(kind, "summed over the ranks in" if reduced else "", report(level, reduced=reduced))
    assert verdict.observed([report(level, reduced=reduced)])["reduce_dtype"] == dtype
