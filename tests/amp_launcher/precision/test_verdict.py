"""The verdict on a run, from the reports of all its observed steps and ranks."""

from __future__ import annotations

import pytest

from amp_launcher.precision import verdict
from tests.amp_launcher.precision.reports import both, call, expect, judged, listed, report

FLOAT32_FORWARD = [call(False, "float32"), call(True)]


def test_only_what_no_later_step_can_change_is_judged_before_the_end():
    assert verdict.judge_so_far([report(problems=["blind"])]) == ("unknown", "step 1: blind")
    assert verdict.judge_so_far([report(optimizer={"bfloat16": 1})])[0] == "contradicted"
    skipped = report("o2", optimizer={})
    assert judged(skipped)[0] == "unknown"
    assert verdict.judge_so_far([skipped])[0] == "proved", "a later step may reach the optimizer"
    assert judged(skipped, report("o2", step=2))[0] == "proved"


@pytest.mark.parametrize(
    ("key", "rule", "written"),
    [
        ("deny", {"deny": ["matmul"]}, "matmul"),
        ("deny", {"deny": ["matmul"]}, "matmul_v2"),
        ("allow", {"allow": ["softmax"]}, "softmax"),
        ("infer", {"either": ["softmax"]}, "softmax"),
        ("keep_fp32", {"keep_fp32": ["head*"]}, "head*"),
    ],
)
def test_an_entry_that_no_observed_step_matched_is_unknown_and_named(key, rule, written):
    (meaning,) = next(iter(rule.values()))
    change = {"rule": rule, "asked": {"allow": {}, "deny": {}, "keep_fp32": {}, key: {meaning: written}}}
    kind, why = judged(report(**change), report(step=2, **change))
    assert (kind, why.count("matched nothing that was observed")) == ("unknown", 1)
    assert f"amp.{key}=[{written}] matched nothing" in why
    assert verdict.judge_so_far([report(**change)])[0] == "proved", "a later step may match it"
    matched = {"listed": [listed(meaning, "bfloat16" if key == "allow" else "float32")], "matched": ["head*"]}
    expect("proved", "", report(**change), report(step=2, **change, **matched))


def test_what_only_the_evaluation_runs_counts_and_is_no_step():
    change = {"rule": {"deny": ["softmax"]}, "asked": {"allow": {}, "deny": {"softmax": "softmax"}, "keep_fp32": {}}}
    evaluation = {"step": 4, "evaluation": True, "calls": [], "optimizer": {}, **change}
    seen = report(listed=[listed("softmax", "float32")], **evaluation)
    expect("proved", "at step 1 on", report(**change), seen, planned=(1,))
    expect("unknown", "step 4 should have been observed and was not", report(**change), seen, planned=(1, 4))
    expect("contradicted", "", report(**change), report(listed=[listed("softmax", "bfloat16")], **evaluation))


def test_proof_share_decides_how_much_has_to_be_half_and_is_named_where_it_decided():
    mixed = report(calls=[call(False, flops=86), call(False, "float32", flops=14), call(True)])
    expect("contradicted", "o1 requires 90%", mixed)
    expect("contradicted", "but proof.share=0.87 requires more", mixed, share=0.87)
    kind, why = judged(mixed, share=0.85)
    assert (kind, why.endswith("; accepted by proof.share=0.85, where the rule is 90%")) == ("proved", True), why
    assert verdict.judge_so_far([mixed], share=0.85)[0] == "proved"
    assert verdict.observed([mixed], share=0.85)["verdict"] == "proved"
    assert "proof.share" not in judged(report(), share=0.85)[1], "90% ran anyway"
    expect("contradicted", "", report(calls=[*both(flops=92), *both("float32", 8)]), share=1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": {"bfloat16": 10}},
        {"parameters": [{"group": "other", "dtype": "bfloat16", "elements": 10}]},
        {"reduced": {"bfloat16": 50, "float32": 50}},
        {"float32": {"switches": {}, "arithmetic": {"mm": "tf32"}}},
        {"rule": {"deny": ["linear"]}, "listed": [listed("linear", "bfloat16")]},
        {"problems": ["blind"]},
        {"calls": [call(False), call(True, device="cuda")]},
    ],
)
def test_proof_share_affects_no_other_rule(wrong):
    assert judged(report(**wrong), share=0.01)[0] == judged(report(**wrong))[0] != "proved"


def ranks(size, step):
    return [report(rank=rank, world_size=size, step=step) for rank in range(size)]


def test_every_rank_has_to_be_seen_at_every_step_whatever_their_number():
    expect("proved", "", *ranks(3, 1), *ranks(3, 5))
    expect("unknown", "step 5 was not observed on rank 2", *ranks(3, 1), *ranks(3, 5)[:2])
    expect("proved", "", *ranks(4, 1), *ranks(2, 5))  # resumed on fewer
    expect("unknown", "step 1 was not observed on rank 3", *ranks(4, 1)[:3], *ranks(2, 5))


def test_one_rank_contradicts_all_by_what_it_ran_and_by_its_settings():
    first, second = ranks(2, 1)
    expect("contradicted", "step 1 on rank 1: 0.0% of forward", first, {**second, "calls": FLOAT32_FORWARD})
    other = {**second, "rule": {**second["rule"], "keep_fp32": ["head"]}}
    expect("contradicted", "had the same precision settings", first, other)


def test_planned_steps_have_to_be_observed():
    expect("proved", "", report(step=1), report(step=9), planned=(1, 9))
    expect("unknown", "step 9 should have been observed and was not", report(step=1), planned=(1, 9))
    expect("unknown", "no step was observed")


def test_a_contradiction_outweighs_what_is_unknown():
    expect("contradicted", "", report(audit="x", calls=FLOAT32_FORWARD))


def test_many_reasons_are_cut_short():
    _, why = judged(report(problems=[f"problem {number}" for number in range(9)]))
    assert why.count("problem") == 4
    assert why.endswith("; and 5 more")
    assert "more" not in judged(report(problems=[f"problem {number}" for number in range(4)]))[1]


def test_before_the_end_a_rank_may_be_missing_only_where_the_script_is_watched_on_one():
    first = ranks(2, 1)[:1]
    assert verdict.judge_so_far(first) == ("unknown", "step 1 was not observed on rank 1")
    assert verdict.findings_of_rank(first) == []


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([report()], "bfloat16 in 100.0% of forward and 100.0% of backward matrix FLOPs at step 1 on 1 rank"),
        (ranks(3, 7), "bfloat16 in 100.0% of forward and 100.0% of backward matrix FLOPs at step 7 on 3 ranks"),
        (
            [report(calls=[call(False, flops=92), call(False, "float32", 8), call(True)])],
            "bfloat16 in 92.0% of forward and 100.0% of backward matrix FLOPs at step 1 on 1 rank; in other dtypes: "
            "linear in float32 (1 call)",
        ),
        (
            [report("o0", calls=[*both("float32"), *both("float64")])],
            "float32 and float64 in 100.0% of forward and 100.0% of backward matrix FLOPs at step 1 on 1 rank; "
            "in other dtypes: linear in float64 (2 calls)",
        ),
        (
            [report(operations=1200, ignored={"mylib.mm": 150, "aten.sort": 50})],
            "; 1,000 of 1,200 operations seen; proof.ignore leaves out aten.sort (50 calls), mylib.mm (150 calls)",
        ),
        ([report(operations=1200)], "on 1 rank; all 1,200 operations seen"),
    ],
)
def test_a_proof_says_what_was_seen_and_no_more(seen, why):
    assert judged(*seen)[1].endswith(why)


def test_only_a_script_of_its_own_switches_at_o0_on_a_gpu_is_told_what_they_do():
    float32 = {"switches": {}, "arithmetic": {"matmul": "float32"}}
    for level, tf32, device, said in (
        ("o0", None, "cuda", True),
        ("o0", None, "cpu", False),
        ("o0", False, "cuda", False),
        ("o1", None, "cuda", False),
    ):
        dtype = "float32" if level == "o0" else "bfloat16"
        rule, calls = {"tf32": tf32, "device": device}, both(dtype, device=device)
        assert (
            "by the script's switches: matmul float32"
            in judged(report(level, rule=rule, calls=calls, float32=float32))[1]
        ) is said
        assert "switches" not in judged(report(level, rule=rule, calls=calls))[1]


def test_without_masters_a_float32_optimizer_may_leave_half_weights_that_are_frozen():
    norm = {"group": "norm", "dtype": "float32", "elements": 2}
    for group, kind in (("frozen", "proved"), ("other", "contradicted")):
        parameters = [{"group": group, "dtype": "bfloat16", "elements": 10}, norm]
        expect(kind, "", report("o2", rule={"masters": False}, parameters=parameters, optimizer={"float32": 2}))


@pytest.mark.parametrize(
    ("switch", "setting", "said"),
    [
        ("cudnn.rnn.fp32_precision", "tf32", "tf32"),
        ("cudnn.rnn.fp32_precision", "ieee", "float32"),
        ("cudnn.rnn.fp32_precision", "unreadable", "unknown"),
        ("cudnn.allow_tf32", "True", "tf32"),
        ("cudnn.allow_tf32", "False", "float32"),
    ],
)
def test_a_plain_o0_says_in_which_float32_recurrent_layers_of_cudnn_ran(switch, setting, said):
    settings = {"cuda.matmul.fp32_precision": "none", switch: setting}
    seen = {"switches": {f"torch.backends.{name}": value for name, value in settings.items()}}
    seen["arithmetic"] = {"matmul": "float32"}
    rule = {"tf32": None, "device": "cuda"}
    recurrent = call(False, "float32", operation="_cudnn_rnn", functions=["lstm", "gru"], device="cuda")
    calls = both("float32", device="cuda")
    _, why = judged(report("o0", rule=rule, float32=seen, calls=[*calls, recurrent]))
    assert f"by the script's switches: matmul float32, recurrent layers {said}" in why
    _, why = judged(report("o0", rule=rule, float32=seen, calls=calls))
    assert "recurrent" not in why


def test_observed_has_the_fields_of_the_result():
    last = report("o2", step=2, float32={"switches": {}, "arithmetic": {"matmul": "float32"}})
    fields = verdict.observed([last, report("o2")])
    assert fields.keys() == verdict.observed([]).keys()
    assert verdict.observed([])["verdict"] == "unknown"
    assert fields.pop("why")
    assert fields == {
        "verdict": "proved",
        "dtype": "bfloat16",
        "half_flop_share": 1.0,
        "step_flops": 200,
        "param_dtypes": {"bfloat16": 10, "float32": 2},
        "reduce_dtype": None,
        "gather_dtype": None,
        "state_dtype": None,
        "tf32": False,
        "xla_clusters": None,
        "device": "cpu",
    }


def test_the_share_is_of_all_work_whatever_was_denied():
    calls = [*both(), *both("float32", 300, functions=["conv2d"])]
    fields = verdict.observed([report(calls=calls, rule={"deny": ["conv2d"]})])
    assert (fields["verdict"], fields["half_flop_share"], fields["dtype"]) == ("proved", 0.25, "float32")


def test_a_run_that_never_updated_a_weight_is_not_proved_and_stays_contradicted():
    fields = verdict.without_updates(verdict.observed([report("o2")]), 8)
    assert fields["verdict"] == "unknown"
    assert fields["why"].startswith("no weight was updated: all 8 steps overflowed and were skipped")
    assert fields.keys() == verdict.observed([]).keys()
    contradicted = verdict.observed([report(calls=FLOAT32_FORWARD)])
    assert verdict.without_updates(contradicted, 8) == contradicted


@pytest.mark.parametrize(
    ("device", "changes", "says"),
    [
        ("cuda", {"kernels": 4}, "; all 4 matrix kernels of the GPU are of counted operations"),
        ("cuda", {"kernels": 4, "uncounted_kernels": {"gemm in add": 2}}, "; the GPU also ran gemm in add"),
        ("cuda", {}, "; the GPU's own record has no matrix kernels: another profiler has it, or it needs a permission"),
        ("cuda", {"unaudited": "the script's own profiler was at work"}, ""),
        ("cpu", {}, ""),
    ],
)
def test_what_the_gpu_recorded_stands_beside_the_verdict(device, changes, says):
    recorded = {"kernels": 0, "uncounted_kernels": {}, "unaudited": "", **changes}
    kind, why = judged(report("o1", calls=both(device=device), rule={"device": device}, **recorded))
    assert kind == "proved"
    assert says in why
    assert says or "kernels" not in why


def test_a_matrix_kernel_that_no_operation_launched_leaves_the_verdict_open():
    kind, why = judged(report(calls=both(), unlaunched_kernels={"sm80_xmma_gemm": 2}))
    assert kind == "unknown"
    assert "the GPU ran sm80_xmma_gemm (2 calls)" in why
