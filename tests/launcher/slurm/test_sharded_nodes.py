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
@pytest.mark.parametrize(
    ("begun", "words", "ranks", "where"),
    [
        pytest.param("fsdp", ("nodes=1",), 1, "", id="shards of two nodes on one"),
        pytest.param("ddp", ("parallel=fsdp",), 2, "bfloat16 and float32 from step 9 on", id="whole weights in shards"),
    ],
)
def test_a_run_goes_on_sharded_otherwise_and_is_proved(
    submitted: Submitted, begun: str, words: tuple[str, ...], ranks: int, where: str
) -> None:
    submitted.done(begun)
    folder = submitted.folder(begun)
    resumed = submitted.launcher("resume", folder.name, *words, "steps=12", "wait=true")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    result = submitted.done(begun)
    assert (result["world_size"], result["determinism"], result["resumed_from"]) == (ranks, "best_effort", 8)
    assert result["observed"]["verdict"] == "proved", result["observed"]["why"]
    assert where in result["observed"]["why"]
    assert [row["step"] for row in steps(folder)] == list(range(1, 13))
