"""Masters and the sums of gradients follow what is done to the model: nothing is undone, and nothing comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from recipes.precision.levels import LossScale
from recipes.torch_.precision import Precision
from recipes.torch_.precision.masters import LARGE, Masters
from tests.recipes.torch_.loops import HALVES, UNSCALED, OneWeight, backward, mean_square, of, same, step, stepped

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
HAS_GRAD_DTYPE = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="came with torch 2.10")


def one_weight(level: str = "o2", dtype: str = "bfloat16", **options: Any) -> OneWeight:
    return OneWeight(of(level, dtype, UNSCALED), **options)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


# Gradients


@pytest.mark.parametrize("level", ["o0", "o1", "o2", "o3"])
@pytest.mark.parametrize(
    "clear",
    [
        lambda weight: weight.net.zero_grad(),
        lambda weight: weight.net.zero_grad(set_to_none=False),
        lambda weight: weight.optimizer.zero_grad(),
        lambda weight: setattr(weight.net.weight, "grad", None),
    ],
    ids=["model", "zeros", "optimizer", "none"],
)
def test_what_was_cleared_after_accumulation_is_not_stepped(level: str, clear: Callable[[OneWeight], Any]) -> None:
    for before in (1, 2, 3):
        weight = one_weight(level)
        weight.backward(*[100.0] * before)
        clear(weight)
        weight.backward(2.0)
        assert weight.norm() == 2.0


@pytest.mark.parametrize("dtype", HALVES)
def test_the_same_gradient_512_times_is_512_times_as_much(dtype: str) -> None:
    weight = one_weight(dtype=dtype)
    weight.backward(*[2.0**-9] * 512)
    assert (weight.norm(), weight.master) == (1.0, 0.0)


def test_what_was_done_to_the_summed_gradients_is_what_is_stepped() -> None:
    weight = one_weight()
    weight.backward(256.0, 1.0, 1.0)
    nn.utils.clip_grad_norm_(weight.net.parameters(), 3.0)
    weight.precision.step(weight.optimizer)
    assert weight.master == pytest.approx(1.0 - 3.0, abs=0.02)


def test_gradients_stay_until_they_are_cleared_as_without_masters() -> None:
    weight = one_weight()
    weight.backward(1.0)
    weight.precision.step(weight.optimizer)
    assert weight.net.weight.grad is not None and weight.net.weight.grad.item() == 1.0
    weight.backward(0.5)
    weight.precision.step(weight.optimizer)
    assert weight.master == 1.0 - 1.0 - 1.5


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError


def test_a_backward_that_raises_leaves_the_gradients_that_were_there() -> None:
    weight = one_weight()
    weight.backward(256.0, 1.0)
    with pytest.raises(ZeroDivisionError):
        weight.precision.backward(Fails.apply(weight.net(torch.ones(1, 1).bfloat16())).float().sum())
    weight.precision.step(weight.optimizer)
    assert weight.master == 1.0 - 257.0


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
                backward(precision, net, indices, lambda outputs: outputs.square().sum())
            assert net.weight.grad.is_sparse
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        return stepped(optimizer)[0]

    assert torch.allclose(trained("o2"), trained("o0"), atol=5e-3)


@HAS_GRAD_DTYPE
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shared_gradients_train_bit_for_bit_as_copied_ones(micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[torch.Tensor]:
        precision = of()
        torch.manual_seed(0)
        net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)))
        optimizer = precision.optimizer(net, sgd(net))
        for _ in range(5):
            for part in INPUTS.chunk(micro_batches):
                backward(precision, net, part)
            precision.step(optimizer)
            precision.update()
            optimizer.zero_grad()
        assert all(weight.grad is None for group in optimizer.param_groups for weight in group["params"])
        return [*net.parameters(), *stepped(optimizer)]

    copied = trained()
    shared = 0

    def can_share_grads(self: Masters, optimizer: Any) -> bool:
        nonlocal shared
        possible = all(weight.valid_sum() is None for weight in self._weights_of(optimizer))
        shared += possible
        return possible

    monkeypatch.setattr(Masters, "can_share_grads", can_share_grads)
    assert same(copied, trained())
    assert shared == (5 if micro_batches == 1 else 0)


@HAS_GRAD_DTYPE
@pytest.mark.parametrize(
    ("device", "size", "optimizer", "options", "shares"),
    [
        ("cuda", LARGE, torch.optim.SGD, {}, True),
        ("cpu", LARGE, torch.optim.SGD, {}, False),
        ("cuda", LARGE // 2, torch.optim.SGD, {}, False),
        ("cuda", LARGE, torch.optim.SGD, {"momentum": 0.9}, False),
        ("cuda", LARGE, torch.optim.SGD, {"weight_decay": 0.1}, False),
        ("cuda", LARGE, torch.optim.Adagrad, {}, False),
    ],
)
def test_gradients_are_shared_with_plain_sgd_on_large_gpu_weights_only(
    device: str, size: int, optimizer: Any, options: dict[str, float], shares: bool
) -> None:
    with FakeTensorMode():
        made = optimizer([nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device=device))], lr=0.1, **options)
        masters = Masters()
        masters.add(made, {}, {})
        assert masters.can_share_grads(made) is shares


# Weights


@pytest.mark.parametrize("level", ["o0", "o1", "o2"])
def test_a_parameter_of_two_optimizers_takes_both_their_updates(level: str) -> None:
    weight = one_weight(level, lr=0.25)
    other = weight.another(0.5)
    for gradients, expected in (((1.0,), 1.0 - 0.75), ((256.0, 1.0, 1.0), 0.25 - 258 * 0.75)):
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
    weight.precision.update()
    assert weight.master == pytest.approx(1.0 - 0.375, abs=1e-6)


@pytest.mark.parametrize(("level", "layer"), [("o1", nn.Linear(4, 4)), ("o2", nn.LayerNorm(4))])
def test_a_float32_parameter_of_two_optimizers_is_refused_under_a_loss_scale(level: str, layer: nn.Module) -> None:
    precision = of(level, "float16", LossScale(mode="dynamic"))
    net = precision.cast(nn.Sequential(layer))
    precision.optimizer(net, sgd(net))
    with pytest.raises(RuntimeError, match=r"parameter 0\.weight is in two optimizers, .* twice"):
        precision.optimizer(net, sgd(net))


def trained(
    change: Callable[[nn.Linear], Any], level: str = "o2", dtype: str = "bfloat16"
) -> tuple[nn.Linear, Precision]:
    """Two steps, the weights changed after the first."""
    torch.manual_seed(0)
    precision = of(level, dtype, UNSCALED)
    net = precision.cast(nn.Linear(8, 8, bias=False))
    optimizer = precision.optimizer(net, sgd(net, 1e-3))
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
    net = precision.cast(nn.Embedding(20, 16, max_norm=1.0))
    nn.init.constant_(net.weight, 15.0)
    optimizer = precision.optimizer(net, sgd(net, 0.01))
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
    net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)))
    optimizer = precision.optimizer(net, sgd(net, 1e-4))
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
    models = [precision.cast(nn.Linear(2, 2)) for _ in range(2)]
    names = ["weight", "bias", "1/weight", "1/bias"]
    assert list(precision.master_parameters()) == names
    for model in models:
        precision.optimizer(model, sgd(model))
    assert list(precision.state_dict()["masters"]) == names


def test_copies_and_pickles_of_a_model_are_models_like_others(tmp_path: Any) -> None:
    weight = one_weight()
    net = weight.net
    torch.save(net, tmp_path / "model.pt")
    twin, read = copy.deepcopy(net), torch.load(tmp_path / "model.pt", weights_only=False)
    rebuilt = type(net.weight)(
        net.weight.detach().clone(), requires_grad=True, **net.weight.__dict__
    )  # as accelerate does
    assert type(read.weight) is nn.Parameter
    weight.backward(0.5)
    weight.precision.step(weight.optimizer)
    assert net.weight.item() == 0.5
    assert [copied.item() for copied in (twin.weight, read.weight, rebuilt)] == [1.0] * 3


# Saved


def test_masters_are_saved_and_restored_by_name() -> None:
    def start(order: int) -> tuple[Precision, nn.Module, list[torch.optim.Optimizer]]:
        torch.manual_seed(0)
        precision = of()
        net = precision.cast(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
        return precision, net, [precision.optimizer(net, sgd(part)) for part in list(net)[::order]]

    precision, net, optimizers = start(1)
    backward(precision, net, INPUTS, mean_square)
    for optimizer in optimizers:
        precision.step(optimizer)
    state = precision.state_dict()
    assert list(state["masters"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    other, twin, _ = start(-1)
    other.load_state_dict(state)
    assert same(other.master_parameters().values(), precision.master_parameters().values())
    assert same(net.parameters(), twin.parameters())
    nn.init.constant_(net[0].weight, 5.0)
    assert precision.state_dict()["masters"]["0.weight"].unique().item() == 5.0, "what is saved follows the model"
