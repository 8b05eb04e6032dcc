"""A run that takes no step for long: when that is told, what is told, and how it is ended."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from amp_launcher.loop.spans import Spans
from amp_launcher.settings import Settings, Watch
from amp_launcher.watchdog import FIRST, HALTED, LEAST, TIMES, Watchdog, place_of
from tests import patience
from tests.amp_launcher import forking
from tests.amp_launcher.forking import Forked, environment, run_as_main

forking.preload("amp_launcher.torch.script", "torch._dynamo")


class Watched:
    """A watchdog whose clock and whose rank's steps are set by hand."""

    def __init__(self, run: Path | None = None, **keys: Any) -> None:
        self.now, self.steps = 0.0, 0
        self.ends: list[str] = []
        settings = Settings(train=None, watchdog=Watch(**keys))
        self.dog = Watchdog(lambda: self.steps, settings, run, 1, self.ends.append, clock=lambda: self.now)

    def wait(self, seconds: float, steps: int = 0) -> None:
        """Let time pass, looking at least as often as it does, with these steps at its end."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + HALTED / 2)
            self.steps += steps if self.now == end else 0
            self.dog.note()


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("watchdog: rank 1")]


def test_the_first_step_has_an_hour_and_later_ones_many_times_the_slowest_recent_one(capfd, tmp_path) -> None:
    watched = Watched(tmp_path)
    watched.wait(FIRST - 1, steps=1)
    watched.wait(2, steps=1)
    watched.wait(LEAST)
    assert not told(capfd)
    watched.wait(1)
    (line,) = told(capfd)
    assert f"took no step for {LEAST + 1:.0f} s" in line
    watched.wait(500, steps=1)
    assert f"takes steps again, after {LEAST + 501:.0f} s" in told(capfd)[0]
    watched.wait(TIMES * (LEAST + 501))
    assert not told(capfd)


def test_a_limit_shorter_than_a_step_waits_for_twice_such_a_step(capfd) -> None:
    watched = Watched(after=5.0)
    watched.wait(1, steps=1)
    watched.wait(12, steps=1)
    assert len(told(capfd)) == 2  # that none came, and that one did
    watched.wait(23, steps=1)
    assert not told(capfd)


def test_what_was_halted_did_not_hang(capfd) -> None:
    watched = Watched(after=30.0)
    watched.wait(1, steps=1)
    watched.now += 7200
    watched.dog.note()
    watched.wait(29)
    assert not told(capfd)
    watched.wait(2)
    assert len(told(capfd)) == 1


def test_nothing_looks_where_none_is_asked_for() -> None:
    watched = Watched(after=0.0)
    with watched.dog.watching():
        assert not watched.dog._watches


def test_the_place_is_the_innermost_line_that_is_no_librarys_and_what_it_calls(monkeypatch) -> None:
    event, frames = threading.Event(), sys._current_frames
    thread = threading.Thread(target=lambda: event.wait(), daemon=True)
    thread.start()
    while "wait" not in place_of(frames()[thread.ident or 0]):
        pass
    assert place_of(frames()[thread.ident or 0]).startswith("at test_watchdog.py:")
    assert place_of(frames()[thread.ident or 0]).endswith(", in wait of threading.py")
    event.set()
    assert place_of(sys._getframe()).startswith("at test_watchdog.py:") and "," not in place_of(sys._getframe())
    assert place_of(None) == ""


HANGING = """
import os, time
def load(step):
    if step == 3 and os.environ.get("RANK", "0") == HANGS:
        time.sleep(1000)
class Net:
    pass
import torch
from torch import distributed, nn
net = nn.Linear(4, 1)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    load(step)
    optimizer.zero_grad()
    net(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
"""


def hang(folder: Path, hangs: str, ranks: int) -> tuple[str, list[str]]:
    """What the wrapped script prints on stderr, and the stacks of its ranks."""
    (folder / "train.py").write_text(HANGING.replace("HANGS", repr(hangs)))
    (folder / "run" / "attempts" / "1").mkdir(parents=True)
    words = [
        "amp=o1",
        "device=cpu",
        f"watchdog.after={patience.scaled(2):g}",
        "watchdog.action=stop",
        f"run={folder / 'run'}",
    ]
    job = (("-m", "amp_launcher.torch.script"), [*words, f"script={folder / 'train.py'}"])
    done = Forked(run_as_main, job, ranks=ranks, environ=environment(LAUNCHER_ATTEMPT="1")).complete(timeout=120)
    assert done.returncode, done.stdout
    attempt = folder / "run" / "attempts" / "1"
    return done.stderr, [path.read_text() for path in sorted(attempt.glob("stacks-rank*.txt"))]


def test_a_script_that_hangs_ends_with_its_place_its_stacks_and_its_steps(tmp_path: Path) -> None:
    said, stacks = hang(tmp_path, "0", ranks=1)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(stacks) == 1 and "in load" in stacks[0]
    assert "; it is at train.py:5; its stacks are in attempts/1/stacks-rank0.txt" in said
    assert result["status"] == "failed"
    assert result["reason"].startswith("it took no step for ") and "at train.py:5" in result["reason"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "step" in row and "event" not in row] == [1, 2, 3]


@pytest.mark.slow
def test_of_two_ranks_each_tells_where_it_is(tmp_path: Path) -> None:
    """The one that hangs in its own code, and the one that waits for it."""
    said, stacks = hang(tmp_path, "1", ranks=2)
    first = json.loads((tmp_path / "run" / "attempts" / "1" / "failed.json").read_text())
    assert "it took no step for " in first["reason"]
    places = {line[:16]: line for line in said.splitlines() if line.startswith("watchdog: rank ")}
    assert "; it is at train.py:5" in places["watchdog: rank 1"]
    assert "; it is at train.py:18, in _engine_run_backward of graph.py" in places["watchdog: rank 0"]
    assert "in load" in stacks[1] and "in load" not in stacks[0]


def hang_after_two_steps(words: list[str]) -> None:
    """The mnist trainer."""
    from amp_launcher.recipes.mnist import train_torch as mnist
    from amp_launcher.torch import loop

    real = Spans.after

    def after(self: Any, done: int, *rest: Any) -> Any:
        if done == 2:
            time.sleep(1000)
        return real(self, done, *rest)

    Spans.after = after
    sys.exit(loop.main("mnist", mnist.train, words))


def test_a_recipe_that_hangs_ends_as_failed_with_the_reason(tmp_path: Path) -> None:
    words = ["amp=o0", "device=cpu", "batch=4", "steps=5", "data=synthetic"]
    words += [f"watchdog.after={patience.scaled(2):g}", "watchdog.action=stop"]
    done = Forked(hang_after_two_steps, ([*words, f"run={tmp_path / 'run'}"],)).complete(timeout=120)
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert result["reason"].startswith("it took no step for ")
