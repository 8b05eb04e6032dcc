"""Batches loaded ahead of the steps that take them."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from amp_launcher.loop import prefetch
from amp_launcher.loop.prefetch import AHEAD, Prefetcher


def test_batches_come_in_order_and_only_a_few_are_loaded_ahead():
    loaded: list[int] = []
    prefetcher = Prefetcher(lambda position: loaded.append(position) or position * 10)
    prefetcher.start(itertools.count())
    assert [prefetcher.take()[0] for _ in range(5)] == [0, 10, 20, 30, 40]
    deadline = time.monotonic() + 60
    while len(loaded) < 5 + AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loaded == list(range(5 + AHEAD))


def test_ready_batches_are_dropped_when_it_starts_at_another_position():
    prefetcher = Prefetcher(lambda position: position)
    prefetcher.start(iter(range(100)))
    prefetcher.take()
    prefetcher.start(iter((7, 8)))
    assert [prefetcher.take()[0] for _ in range(2)] == [7, 8]


def test_the_time_waited_is_that_of_the_load_that_was_not_ready(monkeypatch):
    now, reads, requested = [0.0], itertools.count(1), threading.Event()

    def clock() -> float:
        if next(reads) == 3:  # as the second batch is taken
            requested.set()
        return now[0]

    def load(position: int) -> int:
        if position == 1:
            assert requested.wait(60)
            now[0] += 0.6
        return position

    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=clock))
    prefetcher = Prefetcher(load)
    prefetcher.start(iter(range(3)))
    assert [prefetcher.take()[1] for _ in range(3)] == [0.0, 0.6, 0.0]


def test_an_error_of_a_load_is_raised_where_its_batch_is_taken():
    prefetcher = Prefetcher(lambda position: 1 // position)
    prefetcher.start(iter((1, 0)))
    assert prefetcher.take()[0] == 1
    with pytest.raises(ZeroDivisionError):
        prefetcher.take()
