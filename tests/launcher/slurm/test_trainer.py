"""The real trainer in torch on the real Slurm, on one node and, over gloo, on two."""

from __future__ import annotations

import json

from launcher.code.job_files import code_files
from launcher.executors import execute, submission
from launcher.plan import record
from launcher.runs import log_tail, store
from launcher.script import telemetry
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.launcher.slurm.trainers import (
    LONG,
    STEPS,
    Moments,
    Trainers,
    ask_as_before_a_time_limit,
    kill,
    processes,
    saved,
    told,
)
from tests.recipes.torch_.trainers import result, rows

RANKS = [["rank", "host", "device", "GPU", "visible", "GPUs"], ["0", "n1", "cpu", "-", "none"]]
RANKS += [["1", "n2", "cpu", "-", "none"]]


def test_before_its_time_limit_it_saves_and_goes_on_in_the_same_folder(trainers: Trainers, moments: Moments) -> None:
    folder = trainers.start(trainers.plan(pace=0.3))
    saved(folder, moments.step() // 2)
    ask_as_before_a_time_limit(folder)
    until(lambda: store.read_or_empty(folder / "status.json").get("state") == "requeued", LONG)
    until(lambda: "begin time" in state(folder).reason, LONG)
    marker = store.read_or_empty(folder / "attempts/1/stopped.json")
    assert 0 < marker["step"] < STEPS
    assert (folder / marker["checkpoint"] / "manifest.json").exists()
    trainers.ends_as_if_undisturbed(folder)
    assert state(folder).attempt == 2
    assert [row["resumed_from"] for row in rows(folder) if row.get("event") == "start"] == [None, marker["step"]]
    assert not (folder / "STOP").exists()


def test_two_jobs_on_the_same_two_nodes_one_stopped_before_its_time_limit_and_one_with_a_rank_killed(
    pairs: Trainers, moments: Moments
) -> None:
    stopped, killed = folders = [pairs.start(pairs.plan(pace=0.3)) for _ in range(2)]
    until(lambda: all(len(processes(each)) == 2 for each in folders), LONG)
    saved(killed, moments.step())
    kill([moments.random.choice(processes(killed))])
    saved(stopped, 4)
    ask_as_before_a_time_limit(stopped)
    assert ended(killed, LONG).name == "failed", told(killed)
    assert processes(killed) == []
    pairs.go_on(killed)
    until(lambda: store.read_or_empty(stopped / "status.json").get("state") == "requeued", LONG)
    step = store.read_or_empty(stopped / "attempts/1/stopped.json")["step"]
    assert 0 < step < STEPS
    for folder in folders:
        pairs.ends_as_if_undisturbed(folder)
        assert result(folder)["world_size"] == 2
        lines = [line.split() for line in (folder / "attempts/1/stdout.log").read_text().splitlines()]
        assert [line for line in lines if line in RANKS] == RANKS
        hosts = [(each.attempt, each.node) for each in telemetry.read(folder).hosts]
        assert hosts == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [row["resumed_from"] for row in rows(stopped) if row.get("event") == "start"] == [None, step]


def test_fewer_ranks_than_planned_fail_at_once_with_a_table_of_who_is_there(pairs: Trainers) -> None:
    folder = execute.prepare(pairs.plan(), code_files())
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "processes": 2}))
    submission.start([folder], [record.from_json(store.read_or_empty(folder / "plan.json"))])
    pairs.jobs.add(job_of(folder))
    assert ended(folder, LONG).name == "failed", told(folder)
    _, said = log_tail.read(folder)
    assert said[0] == "mnist: 2 ranks have met, and 4 were planned"
    assert [line.split() for line in said[1:4]] == RANKS
    assert not (folder / "metrics.jsonl").exists()
