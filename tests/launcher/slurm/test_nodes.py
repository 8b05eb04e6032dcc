"""The real trainer on two nodes of the real Slurm, over gloo: torchrun on each, one rank on each."""

from __future__ import annotations

import json

from launcher.code.job_files import code_files
from launcher.executors import execute, submission
from launcher.runs import log_tail, store
from launcher.script import telemetry
from tests.launcher.slurm.bench import ended, job_of, until
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


def test_two_jobs_on_the_same_two_nodes_at_once_are_both_done_and_proved(pairs: Trainers) -> None:
    folders = [pairs.start(pairs.plan()) for _ in range(2)]
    until(lambda: all(len(processes(each)) == 2 for each in folders), LONG)
    for folder in folders:
        pairs.ends_as_if_undisturbed(folder)
        assert result(folder)["world_size"] == 2
        said = (folder / "attempts/1/stdout.log").read_text()
        lines = [line.split() for line in said.splitlines()]
        assert ["rank", "host", "device", "GPU", "visible", "GPUs"] in lines
        assert ["0", "n1", "cpu", "-", "none"] in lines
        assert ["1", "n2", "cpu", "-", "none"] in lines
        assert [(each.attempt, each.node) for each in telemetry.read(folder).hosts] == [(1, 0), (1, 1)]


def test_before_their_time_limit_both_nodes_save_together_and_go_on(pairs: Trainers) -> None:
    folder = pairs.start(pairs.plan(pace=0.3))
    saved(folder, 4)
    ask_as_before_a_time_limit(folder)
    until(lambda: store.read_if_whole(folder / "status.json").get("state") == "requeued", LONG)
    stopped = store.read_if_whole(folder / "attempts/1/stopped.json")["step"]
    assert 0 < stopped < STEPS
    pairs.ends_as_if_undisturbed(folder)
    assert [row["resumed_from"] for row in rows(folder) if row.get("event") == "start"] == [None, stopped]
    sampled = [(each.attempt, each.node) for each in telemetry.read(folder).hosts]
    assert sampled == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_fewer_ranks_than_planned_fail_at_once_with_a_table_of_who_is_there(pairs: Trainers) -> None:
    folder = execute.prepare(pairs.plan(), code_files())
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**plan, "processes": 2}))
    submission.start([folder], "slurm")
    pairs.jobs.add(job_of(folder))
    assert ended(folder, LONG).name == "failed", told(folder)
    _, said = log_tail.read(folder)
    assert said[0] == "mnist: 2 ranks have met, and 4 were planned"
    assert [line.split() for line in said[1:4]] == [
        ["rank", "host", "device", "GPU", "visible", "GPUs"],
        ["0", "n1", "cpu", "-", "none"],
        ["1", "n2", "cpu", "-", "none"],
    ]
    assert not (folder / "metrics.jsonl").exists()


def test_a_rank_that_is_killed_ends_the_run_on_both_nodes_and_it_can_be_resumed(
    pairs: Trainers, moments: Moments
) -> None:
    folder = pairs.start(pairs.plan())
    saved(folder, moments.step())
    kill([moments.random.choice(processes(folder))])
    assert ended(folder, LONG).name == "failed", told(folder)
    assert processes(folder) == []
    pairs.go_on(folder)
    pairs.ends_as_if_undisturbed(folder)
