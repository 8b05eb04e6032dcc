"""Float32 sums of half-precision gradients follow what is done to the model's: nothing is undone or comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from amp_launcher.precision.levels import LossScale
from amp_launcher.torch.precision.masters import LARGE, Masters
from tests.amp_launcher.torch.loops import HALVES, OneWeight, backward, of, one_weight, same, sgd, stepped

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
HAS_GRAD_DTYPE = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="came with torch 2.10")


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
    with weight.precision:
        loss = Fails.apply(weight.net(torch.ones(1, 1))).float().sum()
    with pytest.raises(ZeroDivisionError):
        weight.precision.backward(loss)
    weight.precision.step(weight.optimizer)
    assert weight.master == 1.0 - 257.0


@pytest.mark.parametrize("uses", ["sparse", "sparse sparse", "sparse dense", "dense sparse"])
@pytest.mark.parametrize("dtype", HALVES)
def test_sparse_gradients_are_stepped_as_at_o0(dtype: str, uses: str) -> None:
    """Halved in place before the step."""

    def trained(level: str) -> torch.Tensor:
        torch.manual_seed(0)
        scale = LossScale(mode="static", init=8.0) if (level, dtype) == ("o2", "float16") else None
        precision = of(level, dtype, scale)
        net = precision.prepare(nn.Embedding(10, 4, sparse=True))
        kind = torch.optim.SGD if "dense" in uses else torch.optim.SparseAdam
        optimizer = precision.prepare(kind(list(net.parameters()), lr=0.01))
        for _ in range(3):
            for number, use in enumerate(uses.split(), 1):
                net.sparse = use == "sparse"
                backward(precision, net, torch.tensor([number, 2, 2]), lambda outputs: outputs.square().sum())
            assert net.weight.grad.is_sparse == ("dense" not in uses)
            net.weight.grad.mul_(0.5)
            precision.step(optimizer)
            optimizer.zero_grad()
        return stepped(optimizer)[0]

    assert torch.allclose(trained("o2"), trained("o0"), atol=5e-3)


@HAS_GRAD_DTYPE
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shared_gradients_train_bit_for_bit_as_copied_ones(micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[torch.Tensor]:
        precision = of()
        torch.manual_seed(0)
        net = precision.prepare(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)))
        optimizer = precision.prepare(sgd(net))
        for _ in range(5):
            for part in INPUTS.chunk(micro_batches):
                backward(precision, net, part)
            precision.step(optimizer)
            optimizer.zero_grad()
        assert all(weight.grad is None for group in optimizer.param_groups for weight in group["params"])
        return [*net.parameters(), *stepped(optimizer)]

    copied = trained()
    shared = 0

    def can_share_grads(self: Masters, optimizer: Any) -> bool:
        nonlocal shared
        possible = all(weight.valid_sum() is None for weight in self._by_optimizer[optimizer])
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
        ("cuda", LARGE, torch.optim.SGD, {"fused": True}, False),
        ("cuda", LARGE, torch.optim.Adagrad, {}, False),
    ],
)
def test_gradients_are_shared_with_plain_sgd_on_large_gpu_weights_only(
    device: str, size: int, optimizer: Any, options: dict[str, float], shares: bool
) -> None:
    with FakeTensorMode():
        made = optimizer([nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device=device))], lr=0.1, **options)
        masters = Masters()
        masters.add(made, {})
        assert masters.can_share_grads(made) is shares
