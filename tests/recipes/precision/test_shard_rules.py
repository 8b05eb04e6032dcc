"""Verdicts on hand-written reports of sharded models: what holds, and each part of it broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.recipes.precision.test_verdict import judged, of_level


def of_rank(rank: int, level: str = "o2", **other: Any) -> dict[str, Any]:
    """An honest report of one of two ranks, of 10 parameters and a norm of 2."""
    stored, computed = {"o2": ("float32", "bfloat16"), "o3": ("bfloat16", "bfloat16")}.get(
        level, ("float32", "float32")
    )
    norm = {"o3": "bfloat16"}.get(level, "float32")
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
        "reduced": {"bfloat16" if level == "o3" else "float32": 12},
        "gathered": gathered,
        "shards": {"elements": 6, "of": 12},
    }
    return of_level(level, rule={"parallel": "fsdp"}, **{**honest, **other})


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
def test_honest_ranks_are_proved(level: str) -> None:
    kind, why = judged(of_rank(0, level), of_rank(1, level))
    assert kind == "proved", why
    assert "parameters in shards of" in why


def test_a_run_that_goes_on_sharded_or_whole_is_proved_by_each_steps_own_rule() -> None:
    def of_step(step: int, *, sharded: bool, **other: Any) -> list[dict[str, Any]]:
        more = {"step": step, "planned": [1, 9], **other}
        if sharded:
            return [{**of_rank(rank), **more} for rank in (0, 1)]
        return [of_level("o2", rank=rank, world_size=2, reduced={"float32": 12}, **more) for rank in (0, 1)]

    kind, why = judged(*of_step(1, sharded=False), *of_step(9, sharded=True))
    assert kind == "proved", why
    assert why.endswith("gathered in bfloat16 and float32 from step 9 on")
    kind, why = judged(*of_step(1, sharded=True), *of_step(9, sharded=False))
    assert kind == "proved", why
    assert "in shards" not in why
    kind, why = judged(*of_step(1, sharded=False), *of_step(9, sharded=True, shards={"elements": 12, "of": 12}))
    assert (kind, "hold 24 elements" in why) == ("contradicted", True)


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"gathered": {"float32": 18}}, "contradicted", "was float32, but o2 computes with 10 of 12 in bfloat16"),
        ({"gathered": {"bfloat16": 10, "float32": 8}}, "contradicted", "44.4% of what was gathered"),
        ({"gathered": {"bfloat16": 18}}, "contradicted", "0 elements were gathered in float32 and 18 in bfloat16"),
        ({"gathered": {"float16": 16, "float32": 2}}, "contradicted", "parameters were gathered in float16"),
        ({"gathered": {}}, "unknown", "no gathering of them was seen"),
        ({"reduced": {}}, "unknown", "no sum of gradients over the ranks was seen"),
        ({"reduced": {"bfloat16": 12}}, "contradicted", "summed over the ranks in bfloat16"),
        ({"optimizer_state": {"bfloat16": 12}}, "contradicted", "12 elements of the optimizer's state are bfloat16"),
        ({"shards": {"elements": 5, "of": 10}}, "contradicted", "2 of 12 parameters are not in shards"),
        ({"shards": {"elements": 12, "of": 12}}, "contradicted", "hold 18 elements of parameters"),
        (
            {"parameters": [{"group": "other", "dtype": "bfloat16", "elements": 12}]},
            "contradicted",
            "12 parameters are bfloat16, but o2 makes them float32",
        ),
    ],
)
def test_each_thing_that_is_broken_on_one_rank_shows(change: dict[str, Any], kind: str, reason: str) -> None:
    found, why = judged(of_rank(0), of_rank(1, **change))
    assert (found, reason in why) == (kind, True), why


def test_one_rank_alone_gathers_and_sums_nothing() -> None:
    alone = of_rank(0, world_size=1, reduced={}, gathered={}, shards={"elements": 12, "of": 12})
    assert judged(alone)[0] == "proved"


def test_a_rank_that_copies_while_the_other_shards_is_contradicted() -> None:
    other = of_level("o2", rank=1, world_size=2)
    assert judged(of_rank(0), other)[0] == "contradicted"
