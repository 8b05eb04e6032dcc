"""Running statistics of norms: what a skipped step must not leave in them, and whose they are in an evaluation."""

from __future__ import annotations

import pathlib
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.devices import World
from recipes.torch_.precision import Precision
from recipes.torch_.precision.running_statistics import running
from recipes.torch_.supervised import measure
from tests.recipes.forking import Forked

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3, affine=False)
    )


def train(precision: Precision, net: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> bool:
    optimizer.zero_grad()
    with precision.forward():
        loss = net(precision.input(inputs)).float().square().mean()
    precision.backward(loss)
    applied = precision.step(optimizer).applied
    precision.update()
    return applied


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 1e30])
@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_skipped_step_leaves_no_nan_in_running_statistics(level: Any, bad: float) -> None:
    precision = Precision.of(Amp(level=level, dtype="float16"), LossScale(init=8.0), CPU)
    net = precision.cast(network())
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    assert train(precision, net, optimizer, inputs)
    before = [each.clone() for each in running(net)]
    assert not train(precision, net, optimizer, inputs * bad)
    assert all(torch.equal(one, other) for one, other in zip(running(net), before, strict=True))
    assert train(precision, net, optimizer, inputs)
    assert not torch.equal(before[0], running(net)[0])
    assert all(each.isfinite().all() for each in running(net))
    net.eval()
    assert net(precision.input(inputs.to(next(net.parameters()).dtype))).isfinite().all()


def test_only_what_is_not_finite_goes_back() -> None:
    """A step skipped for its gradients has seen real activations, and their statistics count."""
    precision = Precision.of(Amp(level="o1", dtype="float16"), LossScale(), CPU)
    net = precision.cast(nn.Sequential(nn.BatchNorm1d(2)))
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
    inputs = torch.randn(16, 2)
    inputs[:, 1] = torch.inf
    assert not train(precision, net, optimizer, inputs)
    mean = net[0].running_mean
    assert mean[0].item() == pytest.approx(0.1 * inputs[:, 0].mean().item(), abs=1e-6)
    assert mean[1].item() == 0.0


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_good_steps_leave_the_statistics_that_torch_leaves(level: Any) -> None:
    precision = Precision.of(Amp(level=level, dtype="float16"), LossScale(init=8.0), CPU)
    plain = Precision.of(Amp(level=level, dtype="float16"), LossScale(init=8.0), CPU)
    plain._statistics = None  # type: ignore[attr-defined]
    found = []
    for each in (precision, plain):
        net = each.cast(network())
        optimizer = each.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
        for seed in range(4):
            assert train(each, net, optimizer, torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)))
        found.append([*running(net), *net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def evaluate(folder: pathlib.Path) -> None:
    """After training on data of its own, each rank measures its share."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    world = World(rank=rank, size=2, device=CPU)
    precision = Precision.of(Amp(level="o1"), LossScale(), CPU)
    net = precision.cast(network())
    model = DistributedDataParallel(net)
    optimizer = precision.optimizer(model, torch.optim.SGD(net.parameters(), lr=0.01))
    for seed in range(3):
        train(precision, model, optimizer, 5 * rank + torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)))
    inputs, labels = held_out()
    mine = numpy.arange(rank, len(inputs), 2)
    run: Any = SimpleNamespace(world=world, precision=precision)
    measured = measure(run, net, [(inputs[mine], labels[mine])], len(inputs))
    if rank == 0:
        torch.save({"model": net.state_dict(), "measured": measured}, folder / "saved.pt")
    world.leave()


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return 3 * torch.randn(64, 4, generator=generator), torch.randint(0, 3, (64,), generator=generator)


def test_an_evaluation_of_two_ranks_is_repeated_from_rank_zeros_checkpoint(tmp_path: pathlib.Path) -> None:
    done = Forked(evaluate, (tmp_path,), ranks=2).complete()
    assert done.returncode == 0, done.stderr
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    precision = Precision.of(Amp(level="o1"), LossScale(), CPU)
    net = precision.cast(network())
    net.load_state_dict(saved["model"])
    run: Any = SimpleNamespace(world=World(rank=0, size=1, device=CPU), precision=precision)
    again = measure(run, net, [held_out()], 64)
    assert again["accuracy"] == saved["measured"]["accuracy"]
    assert again["loss"] == pytest.approx(saved["measured"]["loss"], rel=1e-5)


def test_a_rank_without_samples_is_sent_one_and_not_the_batch_that_it_is_a_view_of() -> None:
    sent: list[Any] = []
    world = SimpleNamespace(
        mesh="some",
        device=CPU,
        broadcast=lambda value: sent.append(value) or value,
        sum=lambda values: values,
        agree_on_statistics=lambda net: None,
    )
    run: Any = SimpleNamespace(world=world, precision=Precision.of(Amp(level="o0"), LossScale(), CPU))
    batch = torch.ones(1000, 64), torch.ones(1000, dtype=torch.int64)
    measure(run, nn.Linear(64, 3), [batch], 1000)
    ((inputs, labels),) = sent
    assert (inputs.shape, inputs.untyped_storage().nbytes()) == ((1, 64), 64 * 4)
    assert (labels.shape, labels.untyped_storage().nbytes()) == ((1,), 8)
