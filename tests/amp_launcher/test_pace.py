"""Where ranks spend their time, by real ranks of which one is slow."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from amp_launcher.settings import Settings
from amp_launcher.watchdog import Watchdog
from launcher.runs import slow_ranks
from launcher.runs.slow_ranks import SlowRank
from tests.amp_launcher import forking
from tests.amp_launcher.forking import Forked, environment, run_as_main

forking.preload("amp_launcher.torch.script", "torch._dynamo")
SCRIPT = """\
import os, time, torch
from torch import distributed, nn
from amp_launcher import pace, watchdog
from amp_launcher import job
pace.SAMPLES, pace.EVERY, watchdog.LOOK_EVERY = 60, 20, 0.02
distributed.init_process_group("gloo")
rank = distributed.get_rank()
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

def load():
    time.sleep(0.1 if rank == SLOW else 0.01)  # line 12
    return torch.ones(4, 8)

ended = torch.zeros(1)
while not ended.item():
    inputs = load()
    optimizer.zero_grad()
    net(inputs).square().mean().backward()
    optimizer.step()
    mine = (job.checkpoint_dir().parent / f"attempts/1/pace-rank{rank}.json").exists()
    ended.fill_(mine)
    distributed.all_reduce(ended, distributed.ReduceOp.MIN)
"""


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_that_loads_slowly_is_named_with_its_line(tmp_path: Path, slow: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("SLOW", str(slow)))
    run = tmp_path / "run"
    job = ("-m", "amp_launcher.torch.script"), ["amp=o0", f"script={script}", f"run={run}", "require_proof=false"]
    own = environment(LAUNCHER_CHECKPOINT_DIR=str(run / "checkpoints"))
    ended = Forked(run_as_main, job, ranks=2, environ=own).complete()
    assert ended.returncode == 0, ended.stderr
    (found,) = slow_ranks.find(slow_ranks.read(run, 1))
    assert isinstance(found, SlowRank)
    assert (found.rank, found.node, found.place) == (slow, os.uname().nodename, "train.py:12")
    assert found.share > 0.5 > found.others


def test_one_rank_alone_leaves_nothing_and_the_random_numbers_of_the_script_are_its_own(tmp_path: Path) -> None:
    state = random.getstate()
    Watchdog(lambda: 1, Settings(train=None), tmp_path, 0, lambda reason: None).note()
    assert random.getstate() == state
    assert not list(tmp_path.rglob("pace*"))
