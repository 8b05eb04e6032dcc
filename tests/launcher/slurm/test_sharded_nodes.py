"""parallel=fsdp on two nodes of the real Slurm: proved on both, and the losses of parallel=ddp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.launcher.slurm.submitted import Submitted, all_submitted
from tests.recipes.torch_.trainers import steps
from tests.testbed.facts import Testbed

JOB = (
    *("recipe=gpt", "nodes=2", "amp=o2", "steps=8", "batch=4", "checkpoint.every=0"),
    *("train.layers=2", "train.width=32", "train.heads=2", "train.context=32", "train.held_out=3"),
)


@pytest.fixture(scope="module")
def submitted(testbed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Submitted]:
    root = tmp_path_factory.mktemp("sharded")
    jobs = {parallel: (*JOB, f"parallel={parallel}") for parallel in ("ddp", "fsdp")}
    with all_submitted(testbed, root, jobs) as found:
        yield found


@pytest.mark.slow
def test_shards_on_two_nodes_train_as_copies_do_and_are_proved_on_both(submitted: Submitted) -> None:
    results = {parallel: submitted.done(parallel) for parallel in ("ddp", "fsdp")}
    assert {found["world_size"] for found in results.values()} == {2}
    found = results["fsdp"]
    assert (found["mechanism"], found["effective"]["parallel"]) == ("sharded_fp32_masters", "fsdp")
    observed = found["observed"]
    assert observed["verdict"] == "proved", observed["why"]
    assert set(observed["param_dtypes"]) == {"float32"}
    assert [observed[f"{what}_dtype"] for what in ("gather", "reduce", "state")] == ["bfloat16", "float32", "float32"]
    losses = {parallel: [row["loss"] for row in steps(submitted.folder(parallel))] for parallel in results}
    held_out = {parallel: found["eval"] for parallel, found in results.items()}
    assert held_out["fsdp"]["loss"] == pytest.approx(held_out["ddp"]["loss"], abs=1e-3)
    assert losses["fsdp"] == pytest.approx(losses["ddp"], abs=1e-3)


@pytest.mark.slow
def test_shards_of_two_nodes_are_taken_up_by_one(submitted: Submitted) -> None:
    submitted.done("fsdp")
    folder = submitted.folder("fsdp")
    resumed = submitted.launcher("resume", folder.name, "nodes=1", "steps=12", "wait=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    found = submitted.done("fsdp")
    assert (found["world_size"], found["determinism"], found["resumed_from"]) == (1, "best_effort", 8)
    assert found["observed"]["verdict"] == "proved", found["observed"]["why"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 13))


@pytest.mark.slow
def test_whole_weights_go_on_in_shards_and_are_proved(submitted: Submitted) -> None:
    submitted.done("ddp")
    folder = submitted.folder("ddp")
    resumed = submitted.launcher("resume", folder.name, "parallel=fsdp", "steps=12", "wait=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    result = submitted.done("ddp")
    assert (result["world_size"], result["determinism"], result["resumed_from"]) == (2, "best_effort", 8)
    assert result["observed"]["verdict"] == "proved", result["observed"]["why"]
    assert "gathered in bfloat16 and float32 from step 9 on" in result["observed"]["why"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 13))
