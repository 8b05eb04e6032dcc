"""The real trainer in torch over gloo on two nodes of the real Slurm."""

from __future__ import annotations

from pathlib import Path

from launcher.runs import store
from launcher.script import telemetry
from tests.amp_launcher.torch.trainers import result, rows
from tests.launcher import warm
from tests.launcher.slurm.bench import ended, state, until
from tests.launcher.slurm.trainers import (
    EVERY,
    LONG,
    STEPS,
    Moments,
    Trainers,
    ask_as_before_a_time_limit,
    kill,
    output_of,
    processes,
    python,
    saved,
    submitting,
    then_warm,
)
from tests.testbed.facts import Testbed

RANKS = [["rank", "host", "device", "GPU", "visible"], ["0", "n1", "cpu", "-"], ["1", "n2", "cpu", "-"]]
"""The table of ranks, without the numbers of their GPUs."""


def test_two_jobs_on_the_same_two_nodes_one_stopped_before_its_time_limit_and_one_with_a_rank_killed(
    slurm: Testbed, tmp_path: Path, moments: Moments
) -> None:
    with submitting(Trainers(tmp_path, tmp_path, "nodes=2")) as trainers:
        for name in ("warm", "second"):
            (tmp_path / name).mkdir()
        quick = f"python={python(tmp_path / 'warm', real=warm.python())}"
        second = f"python={then_warm(tmp_path / 'second')}"
        stopped, killed = folders = trainers.start(trainers.plan(quick)), trainers.start(trainers.plan(second))
        until(lambda: len(processes(killed)) == 2, LONG)
        saved(stopped, EVERY)
        ask_as_before_a_time_limit(stopped)
        until((stopped / "attempts/1/stopped.json").exists, LONG)
        marker = store.read_or_empty(stopped / "attempts/1/stopped.json")
        assert 0 < marker["step"] < STEPS
        assert (stopped / marker["checkpoint"] / "manifest.json").exists()  # until the next attempt has saved others
        saved(killed, moments.step())
        kill([moments.random.choice(processes(killed))])
        assert ended(killed, LONG).name == "failed", output_of(killed)
        assert processes(killed) == []
        trainers.go_on(killed)
        trainers.whole = stopped  # which ended in another way: both end as if nothing had happened, or they differ
        for folder in folders:
            trainers.ends_as_if_undisturbed(folder)
            assert (state(folder).attempt, result(folder)["world_size"]) == (2, 2)
            lines = [line.split() for line in (folder / "attempts/1/stdout.log").read_text().splitlines()]
            assert [line[:-1] for line in lines if line[:-1] in RANKS] == RANKS
            hosts = [(series.attempt, series.node) for series in telemetry.read(folder).hosts]
            assert hosts == [(1, 0), (1, 1), (2, 0), (2, 1)]
        assert [row["resumed_from"] for row in rows(stopped) if row.get("event") == "start"] == [None, marker["step"]]
        assert not (stopped / "STOP").exists()
