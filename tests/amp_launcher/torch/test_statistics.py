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

from amp_launcher.precision.levels import LossScale
from amp_launcher.torch.devices import World
from amp_launcher.torch.precision.running_statistics import running
from amp_launcher.torch.supervised import measure
from tests.amp_launcher.forking import Forked
from tests.amp_launcher.torch.loops import CPU, of, same, sgd, step


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3, affine=False)
    )


def samples(seed: int = 0) -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bad", [torch.inf, torch.nan, 1e30])
@pytest.mark.parametrize("level", ["o1", "o2"])
def test_a_skipped_step_leaves_no_nan_in_running_statistics(level: Any, bad: float) -> None:
    precision = of(level, "float16", LossScale(init=8.0))
    net = precision.prepare(network())
    optimizer = precision.prepare(sgd(net, 0.01))
    assert step(precision, net, optimizer, samples()).applied
    before = [statistic.clone() for statistic in running(net)]
    assert not step(precision, net, optimizer, samples() * bad).applied
    assert same(running(net), before)
    assert step(precision, net, optimizer, samples()).applied
    assert not torch.equal(before[0], running(net)[0])
    assert all(statistic.isfinite().all() for statistic in running(net))
    net.eval()
    with precision:
        assert net(samples()).isfinite().all()


def test_only_what_is_not_finite_goes_back() -> None:
    """A step skipped for its gradients has seen real activations, and their statistics count."""
    precision = of("o1", "float16")
    net = precision.prepare(nn.Sequential(nn.BatchNorm1d(2)))
    inputs = samples()[:, :2]
    inputs[:, 1] = torch.inf
    assert not step(precision, net, precision.prepare(sgd(net, 0.01)), inputs).applied
    mean = net[0].running_mean
    assert mean[0].item() == pytest.approx(0.1 * inputs[:, 0].mean().item(), abs=1e-6)
    assert mean[1].item() == 0.0


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_good_steps_leave_the_statistics_that_torch_leaves(level: Any) -> None:
    ends = []
    for restores in (True, False):
        precision = of(level, "float16", LossScale(init=8.0))
        if not restores:
            precision._statistics = None  # type: ignore[attr-defined]
        net = precision.prepare(network())
        optimizer = precision.prepare(sgd(net, 0.01))
        assert all(step(precision, net, optimizer, samples(seed)).applied for seed in range(4))
        ends.append([*running(net), *net.parameters()])
    assert same(*ends)


def evaluate(folder: pathlib.Path) -> None:
    """After training on data of its own, each rank measures its share."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    world = World(rank=rank, size=2, device=CPU)
    precision = of("o1")
    net = precision.prepare(network())
    model = DistributedDataParallel(net)
    optimizer = precision.prepare(sgd(net, 0.01))
    for seed in range(3):
        step(precision, model, optimizer, 5 * rank + samples(seed))
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
    precision = of("o1")
    net = precision.prepare(network())
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
    run: Any = SimpleNamespace(world=world, precision=of("o0"))
    batch = torch.ones(1000, 64), torch.ones(1000, dtype=torch.int64)
    measure(run, nn.Linear(64, 3), [batch], 1000)
    ((inputs, labels),) = sent
    assert (inputs.shape, inputs.untyped_storage().nbytes()) == ((1, 64), 64 * 4)
    assert (labels.shape, labels.untyped_storage().nbytes()) == ((1,), 8)
