"""Which ranks keep the others waiting."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcher.runs.schema import Pace
from launcher.runs.slow_ranks import SlowRank, find

STEP = {"train.py:20": 0.3}


def ranks(*each: tuple[float, Mapping[str, float]]) -> list[Pace]:
    return [Pace(rank, f"n{rank}", waits, places) for rank, (waits, places) in enumerate(each)]


def test_a_rank_that_loads_while_the_others_wait_is_named_with_its_line() -> None:
    loads = {"train.py:20": 0.1, "data.py:5": 0.7}
    (slow,) = find(ranks((0.7, STEP), (0.2, loads), (0.7, STEP), (0.65, STEP)))
    assert slow == SlowRank(1, "n1", "data.py:5", 0.7, 0.0)
    assert find(ranks((0.7, STEP), (0.2, loads))) == [slow]  # of two the one that does not wait


def test_where_all_wait_at_a_line_of_their_own_the_odd_one_is_named() -> None:
    """On a GPU the host waits in `loss.item()`, which is no collective."""
    item = {"train.py:22": 0.9}
    (slow,) = find(ranks((0, item), (0, item), (0, {"train.py:22": 0.3, "data.py:5": 0.6}), (0, item)))
    assert (slow.rank, slow.place) == (2, "data.py:5")


def test_one_that_is_slow_everywhere_is_named_without_a_line() -> None:
    lines = {f"train.py:{number}": 0.06 for number in range(8)}
    some = {f"train.py:{number}": 0.03 for number in range(8)}
    (slow,) = find(ranks((0.7, some), (0.3, lines), (0.7, some)))
    assert (slow.rank, slow.place, slow.share, slow.others) == (1, "", 0.7, pytest.approx(0.3))


@pytest.mark.parametrize(("excess", "named"), [(0.16, 0), (0.17, 1)])
def test_it_is_named_where_steps_would_be_1_2_times_as_fast_without_it(excess: float, named: int) -> None:
    assert len(find(ranks((0.7, STEP), (0.7 - excess, {"train.py:20": 0.3 + excess}), (0.7, STEP)))) == named


def test_nothing_is_said_of_one_rank_nor_where_nothing_tells_who_waits_for_whom() -> None:
    assert find(ranks((0.1, STEP))) == find([]) == []
    assert find(ranks((0, {"train.py:22": 0.9}), (0, {"data.py:5": 0.9}))) == []
