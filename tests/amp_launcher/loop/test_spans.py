"""Which steps an execution runs, and what is due after them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from amp_launcher.loop.spans import Spans
from amp_launcher.settings import Checkpoint, Profile, Settings


def spans(*, first: int = 0, last: int = 25, total: int = 25, tool: Any = "none", **checkpoint: int) -> Spans:
    """Of an attempt with epochs of ten steps."""
    attempt: Any = SimpleNamespace(first=first, last=last, total=total, steps_per_epoch=10, samples=80)
    return Spans(Settings(checkpoint=Checkpoint(**{"every": 0, **checkpoint}), profile=Profile(tool=tool)), attempt)


def taken(spans: Spans, done: int, last: int, most: int = 8) -> list[tuple[int, int]]:
    """First and last steps of each execution."""
    executions = []
    while done < last:
        span = spans.after(done, most)
        assert (span.epoch, span.within) == divmod(done, 10)
        executions.append((span.first, span.last))
        done = span.last
    return executions


def test_an_execution_ends_with_an_epoch_a_checkpoint_a_planned_stop_and_the_attempt():
    assert taken(spans(), 0, 25) == [(1, 8), (9, 10), (11, 18), (19, 20), (21, 25)]
    assert taken(spans(every=6), 0, 25) == [(1, 6), (7, 10), (11, 12), (13, 18), (19, 20), (21, 24), (25, 25)]
    assert taken(spans(every=6, stop_every=9), 6, 18) == [(7, 9), (10, 10), (11, 12), (13, 18)]
    assert taken(spans(first=3, last=7), 3, 7, most=1) == [(4, 4), (5, 5), (6, 6), (7, 7)]


@pytest.mark.parametrize(
    ("due", "options", "steps"),
    [
        ("is_saved", {}, [25]),
        ("is_saved", {"every": 10}, [10, 20, 25]),
        ("is_saved", {"every": 10, "last": 12}, [10, 12]),
        ("is_stop", {}, []),
        ("is_stop", {"stop_every": 5}, [5, 10, 15, 20]),
        ("ends_epoch", {}, [10, 20, 25]),
        ("ends_epoch", {"last": 12}, [10]),
    ],
)
def test_what_is_due_after_a_step(due, options, steps):
    attempt = spans(**options)
    assert [done for done in range(1, options.get("last", 25) + 1) if getattr(attempt, due)(done)] == steps


@pytest.mark.parametrize(
    ("options", "warm"),
    [({}, 5), ({"first": 15}, 17), ({"last": 100, "total": 100}, 10), ({"stop_every": 10}, 2)],
)
def test_steps_of_the_warm_up_are_not_timed_and_its_last_shows_the_kernels(options, warm):
    attempt, profiled = spans(**options), spans(**options, tool="framework")
    each = [attempt.after(done, 1) for done in range(options.get("first", 0), 20)]
    assert [span.first for span in each if not attempt.is_timed(span)][-1] == warm
    assert [span.first for span in each if attempt.shows_kernels(span)] == [warm]
    assert not any(profiled.shows_kernels(span) for span in each)
    whole = attempt.after(options.get("first", 0), 8)
    assert attempt.shows_kernels(whole) is (whole.last >= warm)


def test_each_epoch_has_its_own_order_of_the_samples():
    attempt = spans()
    orders = [list(attempt.order(done)) for done in (0, 9, 10)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == list(range(80))
