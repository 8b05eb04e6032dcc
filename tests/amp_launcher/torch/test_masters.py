"""Masters and the sums of gradients follow what is done to the model: nothing is undone, and nothing comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amp_launcher.precision.levels import LossScale
from amp_launcher.torch.precision import Precision
from tests.amp_launcher.torch.loops import (
    HALVES,
    UNSCALED,
    OneWeight,
    backward,
    of,
    one_weight,
    same,
    sgd,
    step,
    stepped,
    stored,
)

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("level", ["o0", "o1", "o2"])
def test_a_parameter_of_two_optimizers_takes_both_their_updates(level: str) -> None:
    weight = one_weight(level, lr=0.25)
    other = weight.another(0.5)
    for gradients, expected in (((1.0,), 1.0 - 0.75), ((256.0, 1.0, 1.0, 1.0), 0.25 - 259 * 0.75)):
        weight.net.zero_grad()
        weight.backward(*gradients)
        weight.precision.step(weight.optimizer)
        weight.precision.step(other)
        assert weight.master == stepped(other)[0].item() == expected
        assert next(iter(weight.precision.master_parameters().values())).item() == expected
        weight.backward(256.0, 1.0, 1.0)  # and cleared


def test_a_parameter_of_two_optimizers_is_unscaled_once_for_each() -> None:
    weight = OneWeight(of("o2", "float16", LossScale(mode="dynamic", init=128.0)), lr=0.25)
    other = weight.another(0.5)
    weight.backward(0.5)
    weight.precision.step(weight.optimizer)
    weight.precision.step(other)
    assert weight.master == pytest.approx(1.0 - 0.375, abs=1e-6)


@pytest.mark.parametrize(("level", "layer"), [("o1", nn.Linear(4, 4)), ("o2", nn.LayerNorm(4))])
def test_a_float32_parameter_of_two_optimizers_is_refused_under_a_loss_scale(level: str, layer: nn.Module) -> None:
    precision = of(level, "float16", LossScale(mode="dynamic"))
    net = precision.prepare(nn.Sequential(layer))
    precision.prepare(sgd(net))
    with pytest.raises(RuntimeError, match=r"parameter 0\.weight is in two optimizers, .* twice"):
        precision.prepare(sgd(net))


def trained(
    change: Callable[[nn.Linear], Any], level: str = "o2", dtype: str = "bfloat16"
) -> tuple[nn.Linear, Precision]:
    """Two steps, the weights changed after the first."""
    torch.manual_seed(0)
    precision = of(level, dtype, UNSCALED)
    net = precision.prepare(nn.Linear(8, 8, bias=False))
    optimizer = precision.prepare(sgd(net, 1e-3))
    for number in range(2):
        step(precision, net, optimizer, INPUTS, lambda outputs: (outputs - INPUTS).square().mean())
        if number == 0:
            change(net)
    return net, precision


@torch.no_grad()
def clamp(net: nn.Linear) -> None:
    net.weight.clamp_(-0.01, 0.01)


@torch.inference_mode()
def clamp_in_inference_mode(net: nn.Linear) -> None:
    net.weight.clamp_(-0.01, 0.01)


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "clamped": clamp,
    "clamped in inference mode": clamp_in_inference_mode,
    "clamped data": lambda net: net.weight.data.clamp_(-0.01, 0.01),
    "a clamped alias": lambda net: net.weight.data[:].view(-1).clamp_(-0.01, 0.01),
    "other data": lambda net: setattr(net.weight, "data", net.weight.data.clamp(-0.01, 0.01)),
    "loaded": lambda net: net.load_state_dict({"weight": net.weight.detach().clamp(-0.01, 0.01)}),
    "initialized": lambda net: nn.init.constant_(net.weight, 0.01),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_changed_in_place_are_followed(change: Callable[[nn.Linear], Any], dtype: str) -> None:
    net, precision = trained(change, dtype=dtype)
    plain, _ = trained(change, "o0")
    assert net.weight.abs().max().item() <= 0.012
    assert torch.allclose(net.weight.float(), plain.weight, atol=2e-4)
    (master,) = precision.master_parameters().values()
    assert torch.allclose(master, plain.weight, atol=2e-4)


def test_an_embeddings_max_norm_holds() -> None:
    torch.manual_seed(0)
    precision = of()
    net = precision.prepare(nn.Embedding(20, 16, max_norm=1.0))
    nn.init.constant_(net.weight, 15.0)
    optimizer = precision.prepare(sgd(net, 0.01))
    for _ in range(3):
        step(precision, net, optimizer, torch.arange(20), torch.sum)
    for weight in (net.weight, *stepped(optimizer)):
        assert weight.float().norm(dim=1).max().item() < 1.1


def test_what_is_put_back_as_it_was_loses_nothing() -> None:
    """As for an evaluation with averaged weights."""
    untouched, _ = trained(lambda net: None)

    def evaluate_with_others(net: nn.Linear) -> None:
        before = net.weight.detach().clone()
        net.weight.data.fill_(7.0)
        net.weight.data.copy_(before)

    net, precision = trained(evaluate_with_others)
    assert torch.equal(net.weight, untouched.weight)
    (master,) = precision.master_parameters().values()
    assert not torch.equal(master, net.weight.float())


@pytest.mark.parametrize("level", ["o0", "o1", "o2"])
def test_an_average_of_master_parameters_is_one_of_float32_weights(level: str) -> None:
    """Decay .999 over weights that move by less than a rounding step."""
    torch.manual_seed(0)
    precision = of(level)
    net = precision.prepare(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    optimizer = precision.prepare(sgd(net, 1e-4))
    start = {name: weight.detach().clone() for name, weight in precision.master_parameters().items()}
    assert list(start) == [name for name, _ in net.named_parameters()]
    averages = {name: weight.clone() for name, weight in start.items()}
    for _ in range(20):
        step(precision, net, optimizer, INPUTS)
        for name, weight in precision.master_parameters().items():
            assert weight.dtype == torch.float32
            averages[name].lerp_(weight.detach(), 0.1)
    assert all((averages[name] != start[name]).any() for name in ("0.weight", "1.weight"))


def test_two_models_have_names_of_their_own() -> None:
    precision = of()
    models = [precision.prepare(nn.Linear(2, 2)) for _ in range(2)]
    assert len(models) == 2
    assert list(precision.master_parameters()) == ["weight", "bias", "1/weight", "1/bias"]


def test_copies_and_pickles_of_a_model_are_models_like_others(tmp_path: Any) -> None:
    weight = one_weight()
    net = weight.net
    torch.save(net, tmp_path / "model.pt")
    twin, read = copy.deepcopy(net), torch.load(tmp_path / "model.pt", weights_only=False)
    rebuilt = type(net.weight)(
        net.weight.detach().clone(), requires_grad=True, **net.weight.__dict__
    )  # as accelerate does
    assert type(read.weight) is nn.Parameter
    read.load_state_dict({"weight": torch.full((1, 1), 2.0)})
    weight.backward(0.5)
    weight.precision.step(weight.optimizer)
    assert net.weight.item() == 0.5
    assert [copied.item() for copied in (twin.weight, read.weight, rebuilt)] == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("dtype", HALVES)
def test_parameters_that_an_optimizer_gets_later_have_masters_too(dtype: str) -> None:
    precision = of("o2", dtype, LossScale(mode="static", init=4.0) if dtype == "float16" else UNSCALED)
    net = precision.prepare(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)))
    optimizer = precision.prepare(sgd(net[0], 1e-5))
    unrounded = precision.master_parameters()["1.weight"].detach().float()
    optimizer.add_param_group({"params": [net[1].weight], "lr": 1e-5})
    for _ in range(3):
        step(precision, net, optimizer, INPUTS)
    assert {weight.dtype for weight in stepped(optimizer)} == {torch.float32}
    assert (precision.master_parameters()["1.weight"] != unrounded).any()
    backward(precision, net, INPUTS)
    optimizer.zero_grad()
    assert net[1].weight.grad is None


def test_parameters_that_an_optimizer_gets_have_masters_at_once() -> None:
    precision = of("o2", "bfloat16", UNSCALED)
    net = precision.prepare(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)))
    optimizer = precision.prepare(sgd(net[0], 1e-5))
    optimizer.add_param_group({"params": [net[1].weight]})
    assert precision.master_parameters()["1.weight"].dtype == torch.float32


def averaged(model: nn.Module, kind: str) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "moving" else None)


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("kind", ["moving", "equal"])
def test_an_averaged_model_averages_masters_and_resumes(kind: str, made: str) -> None:
    precision, net = of("o2"), layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    average = averaged(net, kind)
    precision.prepare(net, optimizer)
    average = averaged(net, kind) if made == "after" else average
    expected: list[torch.Tensor] = []
    for number in range(30):
        step(precision, net, optimizer, torch.ones(4, 8))
        average.update_parameters(net)
        masters = [master.detach().clone() for master in precision.master_parameters().values()]
        weight = 1 / (number + 1) if kind == "equal" else 0.1
        expected = [old.lerp(new, weight) for old, new in zip(expected or masters, masters, strict=True)]
        if number == 20:
            again = averaged(net, kind)
            again.load_state_dict(*stored(average.state_dict()))
            assert same(again.parameters(), average.parameters()), "an average that is resumed"
    for own, wanted in zip(average.module.parameters(), expected, strict=True):
        torch.testing.assert_close(own.detach(), wanted, rtol=0, atol=1e-6)
    assert {parameter.dtype for parameter in average.parameters()} == {torch.float32}
    with precision:
        assert average(torch.ones(4, 8)).dtype == (torch.float32 if made == "after" else torch.bfloat16)


def test_a_deep_copy_of_a_model_has_its_masters() -> None:
    precision, net = of("o2"), layers()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    precision.prepare(net, optimizer)
    step(precision, net, optimizer, torch.ones(4, 8))
    net[0].weight.data[0, 0] = 3.0
    twin = copy.deepcopy(net)
    assert same(twin.parameters(), precision.master_parameters().values()) and twin[0].weight[0, 0] == 3.0
    tied = copy.deepcopy(nn.ModuleList([net, net[0]]))
    assert tied[1].weight is tied[0][0].weight


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def test_a_parameter_that_takes_the_place_of_another_has_a_master() -> None:
    precision = of()
    net = precision.prepare(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)))
    optimizer = precision.prepare(sgd(net[0], lr=1e-4))
    step(precision, net, optimizer, INPUTS)
    optimizer.param_groups[0]["params"][0] = net[1].weight
    before = net[1].weight.detach().float()
    for _ in range(3):
        optimizer.zero_grad()
        step(precision, net, optimizer, INPUTS)
    master = precision.master_parameters()["1.weight"]
    assert master.dtype == torch.float32 and not torch.equal(master, before)
    assert torch.equal(master.to(net[1].weight.dtype), net[1].weight)


class TowardsFirst(torch.optim.SGD):
    """As schedule-free optimizers do, it evaluates other weights than it trains: here halfway to the first ones."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("z", weight.clone())
        super().step()

    @torch.no_grad()
    def move(self, share: float) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if "z" in self.state[weight]:
                    weight.lerp_(end=self.state[weight]["z"], weight=share)

    def eval(self) -> None:
        self.move(0.5)

    def train(self) -> None:
        self.move(-1.0)


def test_an_optimizers_own_train_and_eval_move_masters() -> None:
    torch.manual_seed(0)
    precision, model = of("o2", "bfloat16"), nn.Linear(8, 8, bias=False)
    first = model.weight.detach().clone()
    model, optimizer = precision.prepare(model, TowardsFirst(model.parameters(), lr=0.3))
    optimizer.train()
    step(precision, model, optimizer, INPUTS)
    trained = precision.master_parameters()["weight"].detach().clone()
    optimizer.eval()
    halfway = precision.master_parameters()["weight"].detach().clone()
    assert torch.equal(halfway, trained.lerp(first, 0.5))
    assert torch.equal(model.weight, halfway.bfloat16())
    saved = stored(model.state_dict(), optimizer.state_dict())
    optimizer.train()
    assert torch.equal(precision.master_parameters()["weight"], halfway.lerp(first, -1.0))
    step(precision, model, optimizer, INPUTS)
    end = precision.master_parameters()["weight"].detach().clone()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    optimizer.train()
    step(precision, model, optimizer, INPUTS)
    assert torch.equal(precision.master_parameters()["weight"], end)
