"""Ranks that a script starts itself. That they compute what they do alone is a guest's, `ranks_by_torch_spawn`."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from amp_launcher.around.child_processes import RANKS
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.settings import Settings
from amp_launcher.torch import spawned_rank
from amp_launcher.torch.spawned_rank import SpawnedRank
from amp_launcher.typed import plain
from tests.amp_launcher.forking import Forked, environment, run_as_main

PROGRAM = ("-m", "amp_launcher.torch.script")
HEAD = """
import os, sys, torch, torch.multiprocessing as mp
from torch import nn
from amp_launcher.job import log

def train(model, steps=30, enabled=True):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, steps + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled) if not enabled else torch.enable_grad():
            loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step, loss=loss, samples=16)

"""
DDP = """
def work(rank, size, port):
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    train(nn.parallel.DistributedDataParallel(nn.Linear(8, 1)))

if __name__ == "__main__":
    with __import__("socket").socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        mp.spawn(lambda rank: None)
    except Exception as error:
        print("not started:", error)
    mp.spawn(work, (2, port), nprocs=2, join=False)
"""
OFF = """
def work(rank):
    train(nn.Linear(8, 1), enabled=False)

if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""
TWICE = """
def work(rank, steps):
    train(nn.Linear(8, 1), steps, enabled=steps < 13)
    sys.exit(steps - 12)

if __name__ == "__main__":
    mp.spawn(work, (12,), nprocs=1)
    try:
        mp.spawn(work, (13,), nprocs=1)
    except mp.ProcessExitedException as error:
        print(error)
"""
NOTHING = """
def work(rank):
    return torch.ones(rank)

if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
"""
STOPS = """
from amp_launcher.job import checkpoint_dir, should_stop

def work(rank):
    import signal, time
    should_stop()
    train(nn.Linear(8, 1), 4)
    if REQUEST == "STOP":
        open("run/STOP", "w").close()
    else:
        os.kill(os.getppid(), signal.SIGTERM)
    while not should_stop():
        time.sleep(0.1)
    time.sleep(2)
    (checkpoint_dir() / "last").touch()

if __name__ == "__main__":
    mp.spawn(work, nprocs=1)
    print("saved")
"""
FORKED = """
def work(rank):
    train(nn.Linear(8, 1), 2)

if __name__ == "__main__":
    mp.start_processes(work, nprocs=1, start_method="fork")
"""


@pytest.fixture
def run(tmp_path):
    def run(text, *more, environ=None):
        (tmp_path / "train.py").write_text(HEAD + text)
        typed = [] if environ else [f"script={tmp_path}/train.py", "amp=o1", "device=cpu", *more]
        words = [f"run={tmp_path}/run", *typed]
        ended = Forked(run_as_main, (PROGRAM, words), environ=environ, cwd=tmp_path).complete()
        result = json.loads((tmp_path / "run/result.json").read_text())
        lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
        return ended, result, [row for row in map(json.loads, lines) if "event" not in row]

    return run


def test_the_mode_is_applied_in_all_of_them_and_proved_and_the_first_ones_steps_are_the_scripts(run):
    ended, result, rows = run(DDP)
    assert (ended.returncode, result["status"]) == (0, "done"), ended
    assert result["observed"]["verdict"] == "proved" and "on 2 ranks" in result["observed"]["why"], result["observed"]
    assert (result["observed"]["dtype"], result["observed"]["reduce_dtype"]) == ("bfloat16", "float32")
    assert (result["world_size"], result["steps"], result["throughput"]["counted"]) == (2, 30, "SGD")
    assert [row["step"] for row in rows] == [*range(1, 31)] and all(row["loss"] for row in rows)
    assert "not started" in ended.stdout


def test_a_rank_that_is_contradicted_ends_the_script_which_says_why(run):
    ended, result, _ = run(OFF)
    assert (ended.returncode, result["observed"]["verdict"], result["steps"]) == (1, "contradicted", 2), ended
    assert (result["throughput"]["counted"], result["loss"]["first"] is None) == ("SGD", False)
    assert result["reason"].startswith("what ran was not amp=o1: step 1:"), result["reason"]
    assert "an autocast of its own that is off" in result["reason"]


def test_steps_of_calls_are_added_only_the_first_calls_end_the_script_and_a_failure_is_the_scripts(run):
    ended, result, rows = run(TWICE, "profile=framework", "profile.start=9", "profile.steps=2")
    assert [row["step"] for row in rows] == [*range(1, 26)] and all(row["loss"] for row in rows)
    assert "process 0 terminated with exit code 1" in ended.stdout and result["profile"]["steps"] == [9, 10], ended
    assert result["reason"].startswith("what ran was not amp=o1: step 13: 0.0% of forward"), result["reason"]


def test_ranks_that_run_are_awaited_for_as_long_as_is_said_and_of_one_that_told_nothing_nothing_is_known(monkeypatch):
    from amp_launcher.torch import spawned_ranks

    monkeypatch.setattr(spawned_ranks, "HURRY", 0.01)
    for patience, runs, left in ((3600.0, [True, True, False], []), (0.0, [True, True], [True])):
        looks = iter(runs)
        ranks = spawned_ranks.SpawnedRanks(StepMeter(None), SimpleNamespace())
        ranks._ranks.append(spawned_ranks.Rank(runs=lambda looks=looks: next(looks)))
        assert not ranks.reports(patience).trained_nothing
        assert [*looks] == left


def test_ranks_that_are_forked_are_not_observed_and_the_script_hears_it_while_they_run(run):
    ended, result, rows = run(FORKED, "require_proof=false")
    assert (ended.returncode, result["observed"]["verdict"], rows) == (0, "unknown", [])
    assert f"starts processes in which nothing is observed; {RANKS}" in ended.stderr


def test_where_they_train_nothing_there_is_nothing_to_prove(run):
    ended, result, _ = run(NOTHING)
    assert (ended.returncode, result["observed"]["verdict"]) == (0, None), ended


@pytest.mark.parametrize("request_to", ["STOP", "TERM"])
def test_one_that_calls_should_stop_saves_and_ends_by_itself(tmp_path, run, request_to):
    (tmp_path / "run/attempts/1").mkdir(parents=True)
    values = plain(Settings(recipe="script", framework="torch", device="cpu", train=None))
    plan = {"schema": 2, "settings": {**values, "train": {}, "amp": {"level": "o1"}}}
    file = {"file": f"{tmp_path}/train.py", "in_image": True, "workdir": str(tmp_path), "arguments": []}
    plan["script"] = {**file, "stop_signal": "TERM"}
    plan["cluster"] = {"stop_before": 30}
    (tmp_path / "run/plan.json").write_text(json.dumps(plan))
    named = {"LAUNCHER_SPEC": f"{tmp_path}/run/plan.json", "LAUNCHER_ATTEMPT": "1"}
    ended, result, _ = run(f"REQUEST = {request_to!r}\n{STOPS}", environ=environment(**named))
    assert ended.returncode == 0 and "saved" in ended.stdout, ended
    assert result["observed"]["verdict"] == "proved" and (tmp_path / "checkpoints/last").exists()


def test_a_rank_that_gets_ready_after_the_process_that_started_it_has_ended_trains_nothing(monkeypatch, capsys):
    """It would train beside the next attempt: torch's own end of a rank begins later."""
    ran = []
    monkeypatch.setattr(importlib.import_module("torch.multiprocessing.spawn"), "_wrap", lambda *call: ran.append(call))
    rank = SpawnedRank(SimpleNamespace(), "/nobody/listens", resumed=False)
    for lives, runs in ((False, 0), (True, 1)):
        monkeypatch.setattr(spawned_rank, "parent_process", lambda lives=lives: SimpleNamespace(is_alive=lambda: lives))
        with nullcontext() if lives else pytest.raises(SystemExit, match="rank 1 ends, as the process that"):
            rank(print, 1)
        assert len(ran) == runs
    assert "warning: rank 1 is not observed" in capsys.readouterr().err
