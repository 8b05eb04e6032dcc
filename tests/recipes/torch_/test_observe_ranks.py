"""Several ranks, as real processes: each tells what it saw, and all have to agree."""

from __future__ import annotations

import contextlib
import gc
import json
import pathlib
import shutil
from typing import Any
from unittest import mock

import pytest
import torch
from torch import distributed
from torch._dynamo.utils import counters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from recipes.precision.levels import Amp
from recipes.torch_.observe import compiled
from recipes.torch_.observe.observer import PrecisionObserver
from tests.recipes.forking import Forked
from tests.recipes.torch_.observed_runs import Dense, Training

WORLD = 2


Case = tuple[str, str, int]
"""Level, wrapper, and how many ranks train in it."""

DDP = [("o0", "ddp", WORLD), ("o1", "ddp", WORLD), ("o2", "ddp", WORLD)]
UNSEEN_DDP, SHARDED, ONE_HONEST = ("o2", "ddp-unseen", WORLD), ("o1", "fsdp", WORLD), ("o1", "ddp", 1)
COMPILES = shutil.which("g++") is not None and not compiled.missing()
COMPILED = [("o1", "ddp-compiled", WORLD), ("o1", "ddp-split", WORLD), ("o2", "ddp-split", WORLD)]
Observed = dict[Case, tuple[dict[str, Any], ...]]
"""By case, what each rank observed of all ranks."""

CASES: list[Case] = [*DDP, UNSEEN_DDP, SHARDED, ONE_HONEST, *(COMPILED if COMPILES else [])]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    folder = tmp_path_factory.mktemp("ranks")
    done = Forked(main, (folder,), ranks=WORLD).complete()
    assert done.returncode == 0, done.stderr
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]
    return dict(zip(CASES, zip(*by_rank, strict=True), strict=True))


def main(folder: pathlib.Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    found = [train(rank, *case) for case in CASES]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    gc.collect()  # gloo aborts a process that still holds a DDP model as it ends
    distributed.destroy_process_group()


def train(rank: int, level: str, wrapper: str, honest_ranks: int) -> dict[str, Any]:
    compiles = wrapper in ("ddp-compiled", "ddp-split")
    training = Training(Dense, Amp(level=level), compile=compiles)
    if wrapper.startswith("ddp"):
        training.model = DistributedDataParallel(training.net)
        if compiles:
            torch._dynamo.reset()
            counters.clear()
            training.model = torch.compile(training.model)
        given = training.net if wrapper == "ddp-unseen" else training.model
        optimizer = torch.optim.SGD(training.net.parameters(), lr=0.01)
        training.optimizer = training.precision.optimizer(given, optimizer)
    else:
        training.model = fully_shard(training.net)
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.01)
    training.observer = PrecisionObserver(training.model, training.precision.resolved)
    if rank >= honest_ranks:
        training.precision.forward = contextlib.nullcontext  # type: ignore[method-assign]
    first_bucket = 1_000 if wrapper == "ddp-split" else distributed._DEFAULT_FIRST_BUCKET_BYTES
    with mock.patch.object(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", first_bucket):
        found = training.run()
    return {**found, "graphs": counters["aot_autograd"]["ok"]}


@pytest.mark.parametrize("case", DDP, ids=lambda case: case[0])
def test_ranks_under_ddp_are_proved_and_agree(case: Case, ranks: Observed) -> None:
    first, second = ranks[case]
    assert first == second
    assert first["verdict"] == "proved", first["why"]
    assert "on 2 ranks" in first["why"]
    assert first["reduce_dtype"] == "float32"
    assert "gradients summed over the ranks in float32" in first["why"]


@pytest.mark.skipif(not COMPILES, reason="it needs a C++ compiler, and a torch whose compiled code can be read")
@pytest.mark.parametrize("case", COMPILED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_compiled_model_in_ddp_is_proved_from_one_graph_and_from_a_graph_for_each_bucket(
    case: Case, ranks: Observed
) -> None:
    first, second = ranks[case]
    assert first == second
    assert first["verdict"] == "proved", first["why"]
    assert "on 2 ranks" in first["why"]
    assert first["half_flop_share"] == 1
    assert first["reduce_dtype"] == "float32"
    assert first["graphs"] == (2 if case[1] == "ddp-split" else 1)


def test_gradients_that_are_reduced_in_half_precision_are_contradicted(ranks: Observed) -> None:
    summed = "100.0% of the gradients were summed over the ranks in bfloat16, but o2 does that in float32"
    for found in ranks[UNSEEN_DDP]:
        assert found["verdict"] == "contradicted"
        assert summed in found["why"]
        assert found["reduce_dtype"] == "bfloat16"


def test_sharded_parameters_are_proved(ranks: Observed) -> None:
    for found in ranks[SHARDED]:
        assert found["verdict"] == "proved", found["why"]


def test_one_rank_in_another_precision_contradicts_all(ranks: Observed) -> None:
    for found in ranks[ONE_HONEST]:
        assert found["verdict"] == "contradicted"
        assert "step 1 on rank 1: 0.0% of forward" in found["why"]
