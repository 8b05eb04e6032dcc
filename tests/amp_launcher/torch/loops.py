"""A training loop's body at any level, and what tests look at afterwards."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.torch.precision import Precision

CPU = torch.device("cpu")
HALVES = ("float16", "bfloat16")
UNSCALED = LossScale(mode="none")


def of(
    level: Any = "o2", dtype: Any = "auto", scale: LossScale | None = None, device: torch.device = CPU, **amp: Any
) -> Precision:
    return Precision(
        Amp(level=level, dtype="auto" if level == "o0" else dtype, **amp),
        loss_scale=scale or LossScale(),
        device=device,
    )


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def mean_square(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def backward(
    precision: Precision, model: nn.Module, inputs: Any, loss_of: Callable[[Any], torch.Tensor] = mean_square
) -> None:
    with precision:
        loss = loss_of(model(inputs))
    precision.backward(loss)


def accumulate(
    precision: Precision,
    model: nn.Module,
    parts: Sequence[Any],
    loss_of: Callable[[Any], torch.Tensor] = mean_square,
) -> None:
    """A backward for each micro-batch; under DDP gradients are reduced with the last."""
    for number, inputs in enumerate(parts, start=1):
        last = number == len(parts) or not isinstance(model, DistributedDataParallel)
        with nullcontext() if last else model.no_sync():
            backward(precision, model, inputs, loss_of)


def step(
    precision: Precision,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Any,
    loss_of: Callable[[Any], torch.Tensor] = mean_square,
    clip: float | None = None,
) -> StepOutcome:
    """One whole iteration."""
    optimizer.zero_grad()
    backward(precision, model, inputs, loss_of)
    outcome = precision.step(optimizer, clip=clip)
    return outcome


def stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What the optimizer steps: the masters where there are any."""
    found = []
    for group, saved in zip(optimizer.param_groups, optimizer.state_dict()["param_groups"], strict=True):
        for position, parameter in enumerate(group["params"]):
            entry = optimizer.state.get(parameter, {})
            found.append(entry.get("master", saved.get("masters", {}).get(str(position), parameter)).detach())
    return found


def stored(*values: Any) -> Any:
    """What a script gets back of what it saved."""
    file = io.BytesIO()
    torch.save(values, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


class OneWeight:
    """A layer of one weight, whose gradient is its input, and its SGD."""

    def __init__(
        self, precision: Precision, start: float = 1.0, lr: float = 1.0, ddp: bool = False, **options: Any
    ) -> None:
        """`options` are those of DDP."""
        self.precision = precision
        self.net = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.net.weight, start)
        precision.prepare(self.net)
        self.model: nn.Module = DistributedDataParallel(self.net, **options) if ddp else self.net
        self.optimizer = self.another(lr)

    def another(self, lr: float) -> torch.optim.Optimizer:
        return self.precision.prepare(sgd(self.net, lr))

    def backward(self, *gradients: float) -> None:
        """A backward for each of these gradients."""
        accumulate(self.precision, self.model, [torch.full((1, 1), gradient) for gradient in gradients], torch.sum)

    def norm(self) -> float:
        """The norm of the gradient that a step takes."""
        norm: torch.Tensor = self.precision.step(self.optimizer, clip=1e9).grad_norm
        return norm.item()

    @property
    def master(self) -> float:
        """What the optimizer steps."""
        return stepped(self.optimizer)[0].item()


def one_weight(level: str = "o2", dtype: str = "bfloat16", **options: Any) -> OneWeight:
    """One without a loss scale."""
    return OneWeight(of(level, dtype, UNSCALED), **options)
