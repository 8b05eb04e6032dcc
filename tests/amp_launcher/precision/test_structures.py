"""Structures whose parts are replaced, of any class."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from amp_launcher.precision.structures import changed


class Pair(NamedTuple):
    first: Any
    second: str


@dataclass(frozen=True)
class Frozen:
    value: Any
    note: str = "a"


def doubled(value: Any) -> Any:
    return changed(value, float, lambda number: 2 * number)


@pytest.mark.parametrize(
    "make",
    [
        lambda part: [part, "a"],
        lambda part: (part, None),
        lambda part: Pair(part, "a"),
        lambda part: {"part": part, "a": 1},
        lambda part: collections.OrderedDict(part=part, a=1),
        Frozen,
    ],
)
def test_a_structure_with_a_part_that_changes_is_copied_and_any_other_returned_itself(make):
    given, unchanged = make([1.0, {"n": 2.0}]), make([1, {"n": 2}])
    assert doubled(unchanged) is unchanged
    assert type(doubled(given)) is type(given)
    assert (doubled(given), given) == (make([2.0, {"n": 4.0}]), make([1.0, {"n": 2.0}]))


def test_a_class_is_no_structure():
    assert doubled(Frozen) is Frozen
