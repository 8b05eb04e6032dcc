"""When ranks poll for a request to stop."""

from __future__ import annotations

import torch

from amp_launcher.torch.devices import World
from amp_launcher.world.preemption import SECONDS, StopPoller

ALONE = World(rank=0, size=1, device=torch.device("cpu"))


def polled(step_seconds: float, steps: int) -> list[int]:
    """The steps before which a rank polls."""
    seconds = 0.0
    poller = StopPoller(ALONE, None, lambda: seconds)
    due = []
    for step in range(steps):
        if poller.due(step):
            due.append(step)
            assert not poller.poll(step), "without a run folder nobody can ask"
        seconds += step_seconds
    return due


def test_ranks_poll_before_every_slow_step_and_about_once_a_second_among_fast_ones():
    assert polled(2 * SECONDS, 5) == [0, 1, 2, 3, 4]
    steps = polled(SECONDS / 100, 10_000)
    assert steps[-1] - steps[-2] in (99, 100)
    assert len(steps) < 110


def test_a_request_is_seen_at_the_very_start_and_later(tmp_path):
    poller = StopPoller(ALONE, tmp_path / "STOP")
    assert poller.due(0)
    assert not poller.poll(0)
    (tmp_path / "STOP").touch()
    assert poller.poll(1)
    assert StopPoller(ALONE, tmp_path / "STOP").poll(0)
