"""Batches loaded ahead of the steps that take them."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from recipes.trainer import prefetch
from recipes.trainer.prefetch import AHEAD, Prefetcher


def test_batches_come_in_order_and_only_a_few_are_loaded_ahead():
    loaded: list[int] = []
    prefetcher = Prefetcher(lambda position: loaded.append(position) or position * 10)
    prefetcher.start(itertools.count())
    assert [prefetcher.take()[0] for _ in range(5)] == [0, 10, 20, 30, 40]
    deadline = time.monotonic() + 60
    while len(loaded) < 5 + AHEAD and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loaded == list(range(5 + AHEAD))


def test_what_was_ready_is_dropped_when_it_starts_elsewhere():
    prefetcher = Prefetcher(lambda position: position)
    prefetcher.start(iter(range(100)))
    prefetcher.take()
    prefetcher.start(iter((7, 8)))
    assert [prefetcher.take()[0] for _ in range(2)] == [7, 8]


def test_the_time_waited_is_that_of_the_load_that_was_not_ready(monkeypatch):
    now, reads, asked = [0.0], itertools.count(1), threading.Event()

    def clock() -> float:
        if next(reads) == 3:  # as the second batch is asked for
            asked.set()
        return now[0]

    def load(position: int) -> int:
        if position == 1:
            assert asked.wait(60)
            now[0] += 0.6
        return position

    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=clock))
    prefetcher = Prefetcher(load)
    prefetcher.start(iter(range(3)))
    assert [prefetcher.take()[1] for _ in range(3)] == [0.0, 0.6, 0.0]


def test_what_a_load_raises_is_raised_where_its_batch_is_taken():
    def load(position: int) -> int:
        if position == 1:
            raise ValueError("broken file")
        return position

    prefetcher = Prefetcher(load)
    prefetcher.start(iter(range(3)))
    assert prefetcher.take()[0] == 0
    with pytest.raises(ValueError, match="broken file"):
        prefetcher.take()
