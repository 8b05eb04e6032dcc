"""Several ranks, as real processes: each tells what it saw, and all have to agree."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any
from unittest import mock

import pytest
import torch
from torch import distributed, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from amp_launcher.precision.levels import Amp
from amp_launcher.torch.observe import compiled
from amp_launcher.torch.observe.observer import PrecisionObserver
from tests.amp_launcher.torch import observed_runs
from tests.amp_launcher.torch.observed_runs import Dense, Training
from tests.amp_launcher.torch.scenarios import RANKS
from tests.amp_launcher.torch.sharded_runs import precision_of, sharded

COMPILES = shutil.which("g++") is not None and not compiled.missing()


def ddp(level: str, *, unseen: bool = False, compile: bool = False, honest: int = RANKS) -> dict[str, Any]:
    """What was observed of so many honest ranks under DDP; `unseen`: without its reduction."""
    training = Training(Dense, Amp(level=level), compile=compile)  # type: ignore[arg-type]
    training.model = DistributedDataParallel(training.net)
    if compile:
        torch._dynamo.reset()
        counters.clear()
        training.model = torch.compile(training.model)
    optimizer = torch.optim.SGD(training.net.parameters(), lr=0.01)
    training.optimizer = training.precision.prepare(optimizer)
    if unseen:
        training.precision._mechanism.reduce = lambda wrapper: None  # type: ignore[method-assign]
    return observed(training, honest)


def observed(training: Training, honest: int = RANKS) -> dict[str, Any]:
    training.observer = PrecisionObserver(training.model, training.precision.resolved)
    if distributed.get_rank() >= honest:
        training.precision._mechanism.forward = contextlib.nullcontext  # type: ignore[method-assign]
    return training.run()


def proved(observed_run: dict[str, Any]) -> None:
    assert observed_run["verdict"] == "proved", observed_run["why"]
    assert "on 2 ranks" in observed_run["why"]
    assert observed_run["reduce_dtype"] == "float32"
    assert "gradients summed over the ranks in float32" in observed_run["why"]
    everyones = [None] * RANKS
    distributed.all_gather_object(everyones, observed_run)
    assert everyones == [observed_run] * RANKS


def compiled_code_is_proved(rank: int, level: str, graphs: int) -> None:
    """From one graph, and from a graph for each of DDP's buckets."""
    first = 1_000 if graphs > 1 else distributed._DEFAULT_FIRST_BUCKET_BYTES
    with mock.patch.object(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", first):
        observed_run = ddp(level, compile=True)
    proved(observed_run)
    assert observed_run["half_flop_share"] == 1
    assert counters["aot_autograd"]["ok"] == graphs


def compiled_shards_are_proved_with_what_is_kept(rank: int) -> None:
    """The weights of compiled code are those gathered: which module they are of shows while it runs."""
    torch.manual_seed(0)
    precision = precision_of(Amp(level="o2", keep_fp32=("2",)), compile=True)
    net = sharded(precision, nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
    model, observer = torch.compile(net), PrecisionObserver(net, precision.resolved)
    optimizer = precision.prepare(torch.optim.SGD(net.parameters(), lr=0.1))
    inputs = torch.randn(4, 32, requires_grad=True)
    with observer.step(1):
        with precision:
            outputs = model(inputs)
        precision.backward(outputs.square().mean())
        precision.step(optimizer)
    observed_run = observed_runs.observed(observer.reports, {1})
    assert observed_run["verdict"] == "proved", observed_run["why"]
    assert "kept in float32 as requested: linear in float32" in observed_run["why"]
    assert 0.5 < observed_run["half_flop_share"] < 1


def sharded_parameters_are_proved(rank: int) -> None:
    training = Training(Dense, Amp(level="o1"))
    training.model = fully_shard(training.net)
    training.optimizer = training.precision.prepare(torch.optim.SGD(training.model.parameters(), lr=0.01))
    observed_run = observed(training)
    assert observed_run["verdict"] == "proved", observed_run["why"]


def tensor_parallel(amp: Amp, *, enabled: bool = True) -> dict[str, Any]:
    """What was observed of layers whose weights are split, so that global products are not those that run."""
    training = Training(Dense, amp)
    layers = [name for name, module in training.net.named_modules() if isinstance(module, nn.Linear)]
    plan = dict(zip(layers, (ColwiseParallel(), RowwiseParallel()), strict=False))
    training.model = parallelize_module(training.net, init_device_mesh("cpu", (RANKS,)), plan)
    training.optimizer = training.precision.prepare(torch.optim.SGD(training.model.parameters(), lr=0.01))
    return observed(training, RANKS if enabled else 0)


def split_layers_are_judged_by_the_products_that_run(rank: int) -> None:
    for amp in (Amp(level="o0"), Amp(level="o1"), Amp(level="o1", allow=("linear",))):
        observed_run = tensor_parallel(amp)
        assert observed_run["verdict"] == "proved", (amp, observed_run["why"])
    observed_run = tensor_parallel(Amp(level="o1"), enabled=False)
    assert observed_run["verdict"] == "contradicted", observed_run["why"]


def gradients_reduced_in_half_precision_are_contradicted(rank: int) -> None:
    observed_run = ddp("o2", unseen=True)
    assert observed_run["verdict"] == "contradicted"
    summed = "100.0% of the gradients were summed over the ranks in bfloat16, but o2 does that in float32"
    assert summed in observed_run["why"]
    assert observed_run["reduce_dtype"] == "bfloat16"


def one_rank_in_another_precision_contradicts_all(rank: int) -> None:
    observed_run = ddp("o1", honest=1)
    assert observed_run["verdict"] == "contradicted"
    assert "step 1 on rank 1: 0.0% of forward" in observed_run["why"]


COMPILED: dict[str, Any] = {
    "compiled-o1": lambda rank: compiled_code_is_proved(rank, "o1", 1),
    "compiled-o1-buckets": lambda rank: compiled_code_is_proved(rank, "o1", 2),
    "compiled-o2-buckets": lambda rank: compiled_code_is_proved(rank, "o2", 2),
    "compiled-shards": compiled_shards_are_proved_with_what_is_kept,
}
SCENARIOS: dict[str, Any] = {
    "ddp-o0": lambda rank: proved(ddp("o0")),
    "ddp-o1": lambda rank: proved(ddp("o1")),
    "ddp-o2": lambda rank: proved(ddp("o2")),
    "split-layers": split_layers_are_judged_by_the_products_that_run,
    "reduced-in-half": gradients_reduced_in_half_precision_are_contradicted,
    "sharded": sharded_parameters_are_proved,
    "one-rank-without-autocast": one_rank_in_another_precision_contradicts_all,
    **(COMPILED if COMPILES else {}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""
