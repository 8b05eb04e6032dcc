"""Masters and the sums of gradients follow what is done to the model: nothing is undone, and nothing comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import mse_loss

from recipes.precision.levels import Amp, LossScale
from recipes.torch_.precision import Precision
from recipes.torch_.precision.masters import LARGE, Masters

CPU = torch.device("cpu")
HALVES = ("float16", "bfloat16")
INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))

HAS_GRAD_DTYPE = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="came with torch 2.10")


def of(level: str = "o2", dtype: str = "bfloat16", scale: LossScale | None = None) -> Precision:
    amp = Amp(level=level, dtype="auto" if level == "o0" else dtype)  # type: ignore[arg-type]
    return Precision.of(amp, scale or LossScale(), CPU)


def linear(
    level: str = "o2", dtype: str = "bfloat16", lr: float = 1.0
) -> tuple[Precision, nn.Linear, torch.optim.Optimizer]:
    """One weight of 1, whose gradient is its input."""
    precision = of(level, dtype, LossScale(mode="none"))
    net = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    precision.cast(net)
    return precision, net, precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=lr))


def backward(precision: Precision, net: nn.Module, gradient: float) -> None:
    with precision.forward():
        loss = net(precision.input(torch.full((1, 1), gradient))).float().sum()
    precision.backward(loss)


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


# Gradients


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
@pytest.mark.parametrize("clear", ["model", "optimizer", "zeros", "none"])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_what_was_cleared_after_accumulation_is_not_stepped(level: str, clear: str, before: int) -> None:
    precision, net, optimizer = linear(level)
    for _ in range(before):
        backward(precision, net, 100.0)
    if clear == "model":
        net.zero_grad()
    elif clear == "optimizer":
        optimizer.zero_grad()
    elif clear == "zeros":
        net.zero_grad(set_to_none=False)
    else:
        net.weight.grad = None
    backward(precision, net, 2.0)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 2.0  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", HALVES)
def test_the_same_gradient_512_times_is_512_times_as_much(dtype: str) -> None:
    precision, net, optimizer = linear(dtype=dtype)
    for _ in range(512):
        backward(precision, net, 2.0**-9)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 1.0  # type: ignore[union-attr]
    assert stepped(optimizer)[0].item() == 0.0


def test_what_was_done_to_the_summed_gradients_is_what_is_stepped() -> None:
    precision, net, optimizer = linear()
    for gradient in (256.0, 1.0, 1.0):
        backward(precision, net, gradient)
    nn.utils.clip_grad_norm_(net.parameters(), 3.0)
    precision.step(optimizer)
    assert stepped(optimizer)[0].item() == pytest.approx(1.0 - 3.0, abs=0.02)


def test_gradients_stay_until_they_are_cleared_as_without_masters() -> None:
    precision, net, optimizer = linear()
    backward(precision, net, 1.0)
    precision.step(optimizer)
    assert net.weight.grad is not None
    assert net.weight.grad.item() == 1.0
    backward(precision, net, 0.5)
    precision.step(optimizer)
    assert stepped(optimizer)[0].item() == 1.0 - 1.0 - 1.5


def test_a_backward_that_raises_leaves_the_gradients_that_were_there() -> None:
    precision, net, optimizer = linear()
    for gradient in (256.0, 1.0):
        backward(precision, net, gradient)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        precision.backward(Fails.apply(net(torch.ones(1, 1).bfloat16())).float().sum())
    precision.step(optimizer)
    assert stepped(optimizer)[0].item() == 1.0 - 257.0


@pytest.mark.parametrize("dtype", HALVES)
def test_sparse_gradients_are_stepped_as_at_o0(dtype: str) -> None:
    def trained(level: str) -> torch.Tensor:
        torch.manual_seed(0)
        scale = LossScale(mode="static", init=8.0) if (level, dtype) == ("o2", "float16") else None
        precision = of(level, dtype, scale)
        net = precision.cast(nn.Embedding(10, 4, sparse=True))
        optimizer = precision.optimizer(net, torch.optim.SparseAdam(list(net.parameters()), lr=0.01))
        for _ in range(3):
            for indices in (torch.tensor([1, 2, 2]), torch.tensor([2, 5])):
                with precision.forward():
                    loss = net(indices).float().square().sum()
                precision.backward(loss)
            assert net.weight.grad.is_sparse
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        return stepped(optimizer)[0].detach()

    assert torch.allclose(trained("o2"), trained("o0"), atol=5e-3)


@HAS_GRAD_DTYPE
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shared_gradients_train_bit_for_bit_as_copied_ones(micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        precision = of()
        torch.manual_seed(0)
        net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)))
        optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(5):
            for part in INPUTS.chunk(micro_batches):
                with precision.forward():
                    loss = net(precision.input(part)).float().square().mean()
                precision.backward(loss)
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        assert all(each.grad is None for each in stepped(optimizer))
        return list(net.parameters()), stepped(optimizer)

    copied = trained()
    shared = 0

    def can_share_grads(self: Masters, optimizer: Any) -> bool:
        nonlocal shared
        possible = all(each.valid_sum() is None for each in self._weights_of(optimizer))
        shared += possible
        return possible

    monkeypatch.setattr(Masters, "can_share_grads", can_share_grads)
    for one, other in zip(copied, trained(), strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
    assert shared == (5 if micro_batches == 1 else 0)


@HAS_GRAD_DTYPE
@pytest.mark.parametrize(
    ("device", "size", "make", "shares"),
    [
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1), True),
        ("cpu", LARGE, lambda each: torch.optim.SGD(each, lr=0.1), False),
        ("cuda", LARGE // 2, lambda each: torch.optim.SGD(each, lr=0.1), False),
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9), False),
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1, weight_decay=0.1), False),
        ("cuda", LARGE, lambda each: torch.optim.Adagrad(each, lr=0.1), False),
    ],
)
def test_gradients_are_shared_with_plain_sgd_on_large_gpu_weights_only(
    device: str, size: int, make: Callable[[Any], torch.optim.Optimizer], shares: bool
) -> None:
    with FakeTensorMode():
        optimizer = make([nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device=device))])
        masters = Masters()
        masters.add(optimizer, {}, {})
        assert masters.can_share_grads(optimizer) is shares


# Weights


@pytest.mark.parametrize("level", ["o0", "o1", "o2"])
def test_a_parameter_of_two_optimizers_takes_both_their_updates(level: str) -> None:
    precision, net, one = linear(level, lr=0.25)
    other = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.5))
    backward(precision, net, 1.0)
    precision.step(one)
    precision.step(other)
    assert net.weight.item() == 0.25
    assert next(iter(precision.master_parameters().values())).item() == 0.25
    if level == "o2":
        assert stepped(one)[0] is stepped(other)[0]
    for gradient in (256.0, 1.0, 1.0):
        backward(precision, net, gradient)
    net.zero_grad()
    for gradient in (256.0, 1.0, 1.0):
        backward(precision, net, gradient)
    precision.step(one)
    precision.step(other)
    assert stepped(one)[0].item() == 0.25 - 258 * 0.75


def test_a_parameter_of_two_optimizers_is_unscaled_once_for_each() -> None:
    precision = of("o2", "float16", LossScale(mode="dynamic", init=128.0))
    net = precision.cast(nn.Linear(1, 1, bias=False))
    one = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.25))
    other = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.5))
    start = stepped(one)[0].item()
    backward(precision, net, 0.5)
    precision.step(one)
    precision.step(other)
    precision.update()
    assert stepped(one)[0].item() == pytest.approx(start - 0.375, abs=1e-6)


@pytest.mark.parametrize("norm", [False, True])
def test_a_float32_parameter_of_two_optimizers_is_refused_under_a_loss_scale(norm: bool) -> None:
    precision = of("o2" if norm else "o1", "float16", LossScale(mode="dynamic"))
    net = precision.cast(nn.Sequential(nn.LayerNorm(4) if norm else nn.Linear(4, 4)))
    precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.25))
    with pytest.raises(RuntimeError, match=r"parameter 0\.weight is in two optimizers, .* twice"):
        precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.5))


def trained(
    change: Callable[[nn.Linear], None], level: str = "o2", dtype: str = "bfloat16"
) -> tuple[nn.Linear, Precision]:
    """Two steps, the weights changed after the first."""
    torch.manual_seed(0)
    precision = of(level, dtype, LossScale(mode="none"))
    net = precision.cast(nn.Linear(8, 8, bias=False))
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    for number in range(2):
        optimizer.zero_grad()
        with precision.forward():
            loss = mse_loss(net(precision.input(INPUTS)).float(), INPUTS)
        precision.backward(loss)
        precision.step(optimizer)
        if number == 0:
            change(net)
    return net, precision


def clamp(net: nn.Linear) -> None:
    with torch.no_grad():
        net.weight.clamp_(-0.01, 0.01)


def clamp_data(net: nn.Linear) -> None:
    net.weight.data.clamp_(-0.01, 0.01)


def clamp_alias(net: nn.Linear) -> None:
    alias = net.weight.data[:]
    alias.view(-1).clamp_(-0.01, 0.01)


def set_data(net: nn.Linear) -> None:
    net.weight.data = net.weight.data.clamp(-0.01, 0.01)


def load(net: nn.Linear) -> None:
    net.load_state_dict({"weight": net.weight.detach().clamp(-0.01, 0.01)})


def in_inference_mode(net: nn.Linear) -> None:
    with torch.inference_mode():
        net.weight.clamp_(-0.01, 0.01)


CHANGES = (clamp, clamp_data, clamp_alias, set_data, load, in_inference_mode)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("change", CHANGES)
def test_weights_changed_in_place_are_followed(change: Callable[[nn.Linear], None], dtype: str) -> None:
    net, precision = trained(change, dtype=dtype)
    plain, _ = trained(change, "o0")
    assert net.weight.abs().max().item() <= 0.012
    assert torch.allclose(net.weight.float(), plain.weight, atol=2e-4)
    (master,) = precision.master_parameters().values()
    assert torch.allclose(master, plain.weight, atol=2e-4)


def test_weights_drawn_anew_are_followed() -> None:
    net, _ = trained(lambda net: nn.init.constant_(net.weight, 3.0))  # type: ignore[arg-type,return-value]
    assert torch.allclose(net.weight.float(), torch.full((8, 8), 3.0), atol=0.1)


def test_an_embeddings_max_norm_holds() -> None:
    torch.manual_seed(0)
    precision = of()
    net = precision.cast(nn.Embedding(20, 16, max_norm=1.0))
    with torch.no_grad():
        net.weight.fill_(15.0)
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for _ in range(3):
        optimizer.zero_grad()
        with precision.forward():
            loss = net(torch.arange(20)).float().sum()
        precision.backward(loss)
        precision.step(optimizer)
    assert net.weight.float().norm(dim=1).max().item() < 1.1
    assert stepped(optimizer)[0].norm(dim=1).max().item() < 1.1


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
    net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    optimizer = precision.optimizer(net, torch.optim.SGD(net.parameters(), lr=1e-4))
    assert list(precision.master_parameters()) == [name for name, _ in net.named_parameters()]
    averages = {name: each.detach().clone() for name, each in precision.master_parameters().items()}
    start = {name: each.clone() for name, each in averages.items()}
    for _ in range(20):
        optimizer.zero_grad()
        with precision.forward():
            loss = net(precision.input(INPUTS)).float().square().mean()
        precision.backward(loss)
        precision.step(optimizer)
        for name, each in precision.master_parameters().items():
            assert each.dtype == torch.float32
            averages[name].lerp_(each.detach(), 0.1)
    assert all((averages[name] != start[name]).any() for name in ("0.weight", "1.weight"))


def test_two_models_have_names_of_their_own() -> None:
    precision = of()
    one, two = (precision.cast(nn.Linear(2, 2)) for _ in range(2))
    assert list(precision.master_parameters()) == ["weight", "bias", "1/weight", "1/bias"]
    for each in (one, two):
        precision.optimizer(each, torch.optim.SGD(each.parameters(), lr=0.1))
    assert list(precision.state_dict()["masters"]) == ["weight", "bias", "1/weight", "1/bias"]


def test_copies_and_pickles_of_a_model_are_models_like_others(tmp_path: Any) -> None:
    net, _ = trained(lambda net: None)
    twin = copy.deepcopy(net)
    assert torch.equal(twin.weight, net.weight)
    torch.save(net, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=False)
    assert type(read.weight) is nn.Parameter
    assert torch.equal(read.weight, net.weight)
    rebuilt = type(net.weight)(net.weight.detach(), requires_grad=True, **net.weight.__dict__)  # as accelerate does
    assert torch.equal(rebuilt, net.weight)


# Saved


def test_masters_are_saved_by_name_and_taken_up_by_it() -> None:
    def start(order: int) -> tuple[Precision, nn.Module, list[torch.optim.Optimizer]]:
        torch.manual_seed(0)
        precision = of()
        net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
        parts = list(net)[::order]
        return precision, net, [precision.optimizer(net, torch.optim.SGD(each.parameters(), lr=0.1)) for each in parts]

    precision, net, optimizers = start(1)
    precision.backward(net(INPUTS.bfloat16()).float().square().mean())
    for each in optimizers:
        precision.step(each)
    state = precision.state_dict()
    assert list(state["masters"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    other, twin, _ = start(-1)
    other.load_state_dict(state)
    for name, each in precision.master_parameters().items():
        assert torch.equal(other.master_parameters()[name], each)
    assert all(torch.equal(one, two) for one, two in zip(net.parameters(), twin.parameters(), strict=True))


def test_what_is_saved_has_followed_the_model() -> None:
    precision, net, _ = linear()
    with torch.no_grad():
        net.weight.fill_(5.0)
    assert precision.state_dict()["masters"]["weight"].item() == 5.0
