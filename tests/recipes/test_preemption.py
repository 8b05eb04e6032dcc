"""When ranks look up from training."""

from __future__ import annotations

from pathlib import Path

import torch

from recipes.preemption import SECONDS, StopPoller
from recipes.torch_.devices import World

ALONE = World(rank=0, size=1, device=torch.device("cpu"))


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def looks(step_seconds: float, steps: int, stop: Path | None = None) -> list[int]:
    clock = Clock()
    poller = StopPoller(ALONE, stop, clock)
    looked = []
    for step in range(steps):
        if poller.due(step):
            looked.append(step)
            poller.poll(step)
        clock.seconds += step_seconds
    return looked


def test_slow_steps_are_looked_up_from_at_every_boundary():
    assert looks(2 * SECONDS, 5) == [0, 1, 2, 3, 4]


def test_fast_steps_are_looked_up_from_about_once_a_second():
    looked = looks(SECONDS / 100, 10_000)
    assert looked[-1] - looked[-2] in (99, 100)
    assert len(looked) < 110


def test_a_request_is_seen_at_the_very_start_and_later(tmp_path):
    poller = StopPoller(ALONE, tmp_path / "STOP")
    assert poller.due(0)
    assert not poller.poll(0)
    (tmp_path / "STOP").touch()
    assert poller.poll(1)
    assert StopPoller(ALONE, tmp_path / "STOP").poll(0)


def test_without_a_run_folder_nobody_can_ask():
    assert not StopPoller(ALONE, None).poll(0)
