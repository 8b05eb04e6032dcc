"""Optimizers at o2 step what they step in a plain loop with float32 masters kept by hand, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from amp_launcher.precision.levels import LossScale
from amp_launcher.torch.precision import Precision
from tests.amp_launcher.torch.loops import UNSCALED, accumulate, of, same, sgd, stored

SEED = torch.Generator().manual_seed(1)
STEPS, OVERFLOW = 8, 4
BATCHES = torch.randn(STEPS, 2, 4, 8, generator=SEED)
WORDS = torch.randint(0, 64, (STEPS, 2, 4), generator=SEED)
SCALES = {"bfloat16": UNSCALED, "float16": LossScale(mode="dynamic", init=2.0**10)}
SPECIAL: dict[str, dict[str, Any]] = {"Adadelta": {"lr": 1.0}, "SGD": {"momentum": 0.9}}
TORCHAO = ("AdamW8bit", "AdamWFp8")


def own_list() -> dict[str, type[Optimizer]]:
    found = {name: getattr(torch.optim, name) for name in dir(torch.optim)}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }


def make(name: str, parameters: Iterable[torch.Tensor]) -> Optimizer:
    if name in TORCHAO:
        kind = getattr(pytest.importorskip("torchao.optim"), name)
    else:
        kind = getattr(torch.optim, name)
    return kind(list(parameters), **{"lr": 1e-2, **SPECIAL.get(name, {})})


def network(name: str) -> nn.Module:
    """8-bit states are of weights from 4,096 elements on."""
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Embedding(64, 8, sparse=True)
    return nn.Sequential(nn.Linear(8, 512, bias=False), nn.Tanh(), nn.Linear(512, 8, bias=False))


def parts(name: str, number: int) -> torch.Tensor:
    return (WORDS if name == "SparseAdam" else BATCHES)[number]


def loss_at(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda outputs: outputs.square().mean() * (1e9 if number == OVERFLOW else 1.0)


def clip_of(name: str) -> float | None:
    return None if name == "SparseAdam" else 0.05  # torch clips no sparse gradients


class Trained:
    """At o2, with accumulation, clipping and, in float16, a step that is skipped."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name, self.precision = name, of("o2", dtype, SCALES[dtype])
        self.model = network(name)
        self.optimizer = make(name, self.model.parameters())
        self.precision.prepare(self.model, self.optimizer)

    def steps(self, first: int, last: int) -> Trained:
        for number in range(first, last):
            self.optimizer.zero_grad()
            accumulate(self.precision, self.model, list(parts(self.name, number)), loss_at(number))
            self.precision.step(self.optimizer, clip=clip_of(self.name))
        return self

    def values(self) -> list[torch.Tensor]:
        weights = [*self.precision.master_parameters().values(), *self.model.parameters()]
        return [weight.detach().clone() for weight in weights]


def by_hand(name: str, dtype: torch.dtype, scale: float) -> tuple[list[torch.Tensor], int]:
    """Masters and rounded weights, and how many steps were skipped."""
    model = network(name)
    masters = [nn.Parameter(weight.detach().clone()) for weight in model.parameters()]
    weights = list(model.to(dtype).parameters())
    optimizer, skipped = make(name, masters), 0
    for number in range(STEPS):
        sums: list[Any] = [None] * len(weights)
        for inputs in parts(name, number):
            for weight in weights:
                weight.grad = None
            with torch.autocast("cpu", dtype):
                loss = loss_at(number)(model(inputs).float())
            (loss * scale).backward()
            fresh = [weight.grad.float() for weight in weights if weight.grad is not None]
            sums = [new if total is None else total + new for total, new in zip(sums, fresh, strict=True)]
        for master, total in zip(masters, sums, strict=True):
            master.grad = (total.coalesce() if total.is_sparse else total) * (1 / scale)
        values = [master.grad.coalesce().values() if master.grad.is_sparse else master.grad for master in masters]
        if not all(bool(value.isfinite().all()) for value in values):
            skipped, scale = skipped + 1, scale / 2
            continue
        if (clip := clip_of(name)) is not None:
            torch.nn.utils.clip_grad_norm_(masters, clip)
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters, strict=True):
                weight.copy_(master)
    return [*(master.detach() for master in masters), *weights], skipped


@pytest.mark.usefixtures("calls_for_kernels")  # torchao's are compiled
@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("name", [*own_list(), *TORCHAO])
def test_an_optimizer_trains_as_with_masters_kept_by_hand_and_resumes(name: str, dtype: str) -> None:
    if name == "LBFGS":
        with pytest.raises(RuntimeError, match="LBFGS calls the model several times a step"):
            Trained(name, dtype)
        return
    one = Trained(name, dtype).steps(0, 6)
    saved = stored(one.model.state_dict(), one.optimizer.state_dict())
    end = one.steps(6, STEPS).values()
    expected, skipped = by_hand(name, getattr(torch, dtype), SCALES[dtype].init if dtype == "float16" else 1.0)
    assert one.precision.skipped_total == skipped == (dtype == "float16")
    assert same(end, expected)
    other = Trained(name, dtype)
    other.model.load_state_dict(saved[0])
    other.optimizer.load_state_dict(saved[1])
    assert same(other.steps(6, STEPS).values(), end)


@pytest.mark.parametrize("when", ["before the optimizer", "after it"])
def test_float32_weights_loaded_after_prepare_are_the_masters(when: str) -> None:
    precision = of()
    model = precision.prepare(nn.Linear(2, 2, bias=False))
    weights = {"weight": torch.full((2, 2), 1.001)}
    if when == "before the optimizer":
        model.load_state_dict(weights)
    precision.prepare(sgd(model))
    if when == "after it":
        model.load_state_dict(weights)
    assert same(precision.master_parameters().values(), weights.values())
    assert model.weight.unique().item() == 1.0


def test_weights_put_in_place_of_the_parameters_are_refused_but_in_a_copy() -> None:
    precision = of()
    model = nn.Linear(2, 2, bias=False)
    weights = {"weight": torch.full((2, 2), 1.001)}
    model.load_state_dict(weights, assign=True)
    precision.prepare(model, sgd(model))
    with pytest.raises(RuntimeError, match=r"leave assign=True out, or load before precision\.prepare"):
        model.load_state_dict(weights, assign=True)
    assert same(precision.master_parameters().values(), weights.values())
    copy.deepcopy(model).load_state_dict(weights, assign=True)


@pytest.mark.parametrize("backwards", [1, 2, 3])
@pytest.mark.parametrize("level", ["o0", "o2"])
def test_a_gradient_clamped_through_its_data_counts(level: str, backwards: int) -> None:
    precision: Precision = of(level)
    model = nn.Linear(2, 2, bias=False)
    model, optimizer = precision.prepare(model, sgd(model, lr=1.0))
    before = [weight.clone() for weight in precision.master_parameters().values()]
    accumulate(precision, model, [torch.ones(1, 2)] * backwards, lambda outputs: outputs.sum() * 4)
    assert model.weight.grad is not None
    model.weight.grad.data.clamp_(max=0.125)
    precision.step(optimizer)
    for weight, start in zip(precision.master_parameters().values(), before, strict=True):
        assert torch.equal(start - weight, torch.full((2, 2), 0.125)) or (start - weight - 0.125).abs().max() < 1e-6
