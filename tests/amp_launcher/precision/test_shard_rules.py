"""Verdicts on hand-written reports of sharded models: what holds, and each part of it broken."""

from __future__ import annotations

import pytest

from tests.amp_launcher.precision.reports import expect, judged, report


def of_rank(rank, level="o2", **changes):
    """An honest report of one of two ranks, of 10 parameters and a norm of 2."""
    stored, computed = {"o2": ("float32", "bfloat16"), "o3": ("bfloat16",) * 2}.get(level, ("float32",) * 2)
    norm = "bfloat16" if level == "o3" else "float32"
    gathered = {computed: 20 if computed == norm else 16}  # the block's twice, the norm and the rest once
    gathered[norm] = gathered.get(norm, 0) + 2
    honest = {
        "rank": rank,
        "world_size": 2,
        "parameters": [
            {"group": "other", "dtype": stored, "elements": 10},
            {"group": "norm", "dtype": norm, "elements": 2},
        ],
        "optimizer": {stored: 12},
        "optimizer_state": {stored: 12},
        "reduced": {norm: 12},
        "gathered": gathered,
        "shards": {"elements": 6, "of": 12},
    }
    return report(level, rule={"parallel": "fsdp"}, **{**honest, **changes})


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
def test_honest_ranks_are_proved(level):
    kind, why = judged(of_rank(0, level), of_rank(1, level))
    assert (kind, "parameters in shards of" in why, "from step" in why) == ("proved", True, False), why


def of_step(step, *, sharded, **changes):
    if sharded:
        return [of_rank(rank, step=step, **changes) for rank in (0, 1)]
    return [report("o2", rank=rank, world_size=2, reduced={"float32": 12}, step=step) for rank in (0, 1)]


def test_a_run_that_goes_on_sharded_or_whole_is_judged_by_the_rule_of_each_step():
    copied, sharded = of_step(1, sharded=False), of_step(9, sharded=True)
    expect("proved", "gathered in bfloat16 and float32 from step 9 on", *copied, *sharded)
    unsharded = of_step(9, sharded=True, shards={"elements": 12, "of": 12})
    expect("contradicted", "hold 24 elements", *copied, *unsharded)
    kind, why = judged(*of_step(1, sharded=True), *of_step(9, sharded=False))
    assert (kind, "in shards" in why) == ("proved", False), why


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"gathered": {"float32": 18}}, "contradicted", "was float32, but o2 computes with 10 of 12 in bfloat16"),
        ({"gathered": {"bfloat16": 10, "float32": 8}}, "contradicted", "44.4% of what was gathered"),
        ({"gathered": {"bfloat16": 18}}, "contradicted", "18 in bfloat16, but o2 computes with 2 of 12 in float32"),
        ({"gathered": {"float16": 16, "float32": 2}}, "contradicted", "parameters were gathered in float16"),
        ({"gathered": {}}, "unknown", "no gathering of them was seen"),
        ({"reduced": {}}, "unknown", "no sum of gradients over the ranks was seen"),
        ({"reduced": {"bfloat16": 12}}, "contradicted", "summed over the ranks in bfloat16"),
        ({"optimizer_state": {"bfloat16": 12}}, "contradicted", "12 elements of the optimizer's state are bfloat16"),
        ({"shards": {"elements": 5, "of": 10}}, "contradicted", "but 2 of 12 parameters are not in shards"),
        ({"shards": {"elements": 12, "of": 12}}, "contradicted", "hold 18 elements of parameters"),
        (
            {"parameters": [{"group": "other", "dtype": "bfloat16", "elements": 12}]},
            "contradicted",
            "12 parameters are bfloat16, but o2 makes them float32",
        ),
    ],
)
def test_each_thing_that_is_broken_on_one_rank_shows(change, kind, reason):
    expect(kind, reason, of_rank(0), of_rank(1, **change))


def test_narrow_states_are_the_levels_only_where_it_has_no_float32_weights():
    narrow = {"optimizer_state": {"bfloat16": 12}}
    expect("contradicted", "but o1 has float32", of_rank(0, "o1"), of_rank(1, "o1", **narrow))
    expect("proved", "", of_rank(0, "o3"), of_rank(1, "o3", **narrow))
    without_masters = {"level": "o2", "masters": False, "parallel": "fsdp"}
    ranks = [of_rank(rank, "o3", **narrow) for rank in (0, 1)]
    parameters = of_rank(0, "o2")["parameters"]
    half = [{**entry, "dtype": "bfloat16" if entry["group"] == "other" else "float32"} for entry in parameters]
    changed = {"parameters": half, "gathered": {"bfloat16": 16, "float32": 2}}
    expect("proved", "", *({**rank, **changed, "rule": {**rank["rule"], **without_masters}} for rank in ranks))


def test_an_evaluation_needs_no_gradients_and_no_states_of_its_own():
    evaluation = {"evaluation": True, "calls": [], "reduced": {}, "gathered": {}, "optimizer": {}}
    expect("proved", "", *ranks_of(1), *ranks_of(2, **evaluation))


def ranks_of(step, **changes):
    return [of_rank(rank, step=step, **changes) for rank in (0, 1)]


def test_one_rank_alone_gathers_and_sums_nothing():
    expect("proved", "", of_rank(0, world_size=1, reduced={}, gathered={}, shards={"elements": 12, "of": 12}))


def test_a_rank_that_copies_while_the_other_shards_is_contradicted():
    expect("contradicted", "", of_rank(0), report("o2", rank=1, world_size=2))
    expect("unknown", "step 1 was not observed on rank 1", of_rank(0))
