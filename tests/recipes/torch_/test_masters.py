"""Gradients on their way to the float32 masters: copied, or lent as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from recipes.levels import Amp, LossScale
from recipes.torch_.masters import LARGE, Masters
from recipes.torch_.precision import Precision

pytestmark = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="came with torch 2.10")

INPUTS = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def trained(micro_batches: int = 1) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Masters]]:
    """The weights, the masters and their keeper after some steps of plain SGD at o2."""
    precision = Precision.of(Amp(level="o2", dtype="bfloat16"), LossScale(), torch.device("cpu"))
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
    masters = [each for group in optimizer.param_groups for each in group["params"]]
    return list(net.parameters()), masters, list(precision._masters.values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_lent_gradients_train_bit_for_bit_as_copied_ones(micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = trained(micro_batches)
    monkeypatch.setattr(Masters, "lends", lambda self: all(each.grad is None for each in self.masters))
    lent = trained(micro_batches)
    for one, other in zip(copied[:2], lent[:2], strict=True):
        assert all(torch.equal(left, right) for left, right in zip(one, other, strict=True))
    (keeper,) = lent[2]
    assert [each is None for each in keeper._gradients] == 4 * [micro_batches == 1]  # of no use when they are lent
    assert all(each.grad is None for each in keeper.masters)


@pytest.mark.parametrize(
    ("device", "size", "make", "lends"),
    [
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1), True),
        ("cpu", LARGE, lambda each: torch.optim.SGD(each, lr=0.1), False),
        ("cuda", LARGE // 2, lambda each: torch.optim.SGD(each, lr=0.1), False),
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1, momentum=0.9), False),
        ("cuda", LARGE, lambda each: torch.optim.SGD(each, lr=0.1, weight_decay=0.1), False),
        ("cuda", LARGE, lambda each: torch.optim.Adagrad(each, lr=0.1), False),
    ],
)
def test_only_what_adds_gradients_to_large_weights_on_a_gpu_gets_them_as_they_are(
    device: str, size: int, make: Callable[[Any], torch.optim.Optimizer], lends: bool
) -> None:
    with FakeTensorMode():
        weights = [nn.Parameter(torch.empty(size, dtype=torch.bfloat16, device=device))]
        assert Masters(make(weights)).lends() is lends
