"""The real trainer in torch over gloo on two nodes of the real Slurm."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from launcher.code.job_files import code_files
from launcher.executors import execute, submission
from launcher.plan import record
from launcher.runs import log_tail, store
from launcher.script import telemetry
from tests.launcher.slurm import stories
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.launcher.slurm.stories import Outcomes, Story
from tests.launcher.slurm.trainers import (
    EVERY,
    LONG,
    SEED,
    STEPS,
    Moments,
    Trainers,
    ask_as_before_a_time_limit,
    kill,
    processes,
    saved,
    submitting,
    told,
)
from tests.recipes.torch_.trainers import result, rows
from tests.testbed.facts import Testbed

RANKS = [["rank", "host", "device", "GPU", "visible", "GPUs"], ["0", "n1", "cpu", "-", "none"]]
RANKS += [["1", "n2", "cpu", "-", "none"]]


def two_jobs_on_the_same_two_nodes_one_stopped_before_its_time_limit_and_one_with_a_rank_killed(
    trainers: Trainers, moments: Moments
) -> None:
    stopped, killed = folders = [trainers.start(trainers.plan()) for _ in range(2)]
    until(lambda: all(len(processes(folder)) == 2 for folder in folders), LONG)
    saved(stopped, EVERY)
    ask_as_before_a_time_limit(stopped)
    saved(killed, moments.step())
    kill([moments.random.choice(processes(killed))])
    # Not its state: Slurm may have started it again by now.
    marker = until(lambda: store.read_or_empty(stopped / "attempts/1/stopped.json"), LONG)
    assert 0 < marker["step"] < STEPS
    assert (stopped / marker["checkpoint"] / "manifest.json").exists()
    assert ended(killed, LONG).name == "failed", told(killed)
    assert processes(killed) == []
    trainers.go_on(killed)
    trainers.whole = stopped  # which ended in another way: both end as if nothing had happened, or they differ
    for folder in folders:
        trainers.ends_as_if_undisturbed(folder)
        assert (state(folder).attempt, result(folder)["world_size"]) == (2, 2)
        lines = [line.split() for line in (folder / "attempts/1/stdout.log").read_text().splitlines()]
        assert [line for line in lines if line in RANKS] == RANKS
        hosts = [(series.attempt, series.node) for series in telemetry.read(folder).hosts]
        assert hosts == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [row["resumed_from"] for row in rows(stopped) if row.get("event") == "start"] == [None, marker["step"]]
    assert not (stopped / "STOP").exists()


def fewer_ranks_than_planned_fail_at_once_with_a_table_of_who_is_there(trainers: Trainers) -> None:
    with trainers.one_at_a_time:
        folder = execute.prepare(trainers.plan(), code_files())
        plan = json.loads((folder / "plan.json").read_text())
        (folder / "plan.json").write_text(json.dumps({**plan, "processes": 2}))
        submission.start([folder], [record.from_json(store.read_or_empty(folder / "plan.json"))])
    trainers.jobs.add(job_of(folder))
    assert ended(folder, LONG).name == "failed", told(folder)
    _, lines = log_tail.read(folder)
    assert lines[0] == "mnist: 2 ranks have met, and 4 were planned"
    assert [line.split() for line in lines[1:4]] == RANKS
    assert not (folder / "metrics.jsonl").exists()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    top = tmp_path_factory.mktemp("trainer")

    @contextlib.contextmanager
    def stage(name: str) -> Iterator[Mapping[str, Any]]:
        (top / name).mkdir()
        # `top` is no run: the stories compare their own.
        with submitting(Trainers(top / name, top, "nodes=2")) as trainers:
            yield {"trainers": trainers, "moments": Moments(name)}

    with stories.cluster_of(testbed, top):
        return stories.outcomes(request, stage)


@pytest.mark.parametrize(
    "story",
    [
        two_jobs_on_the_same_two_nodes_one_stopped_before_its_time_limit_and_one_with_a_rank_killed,
        fewer_ranks_than_planned_fail_at_once_with_a_table_of_who_is_there,
    ],
    ids=lambda story: story.__name__,
)
def test_ranks(outcomes: Outcomes, story: Story) -> None:
    print(f"FAULT_SEED={SEED}")
    outcomes[story].result()
