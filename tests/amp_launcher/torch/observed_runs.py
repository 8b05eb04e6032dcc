"""Small models, and a training loop that is watched: what the tests of the observer share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from amp_launcher.precision import verdict
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.torch.observe.observer import PrecisionObserver
from amp_launcher.torch.precision import Precision

EVERY_HALF = tuple(Amp(level=level, dtype=dtype) for level in ("o1", "o2", "o3") for dtype in ("float16", "bfloat16"))
EVERY_LEVEL = (Amp(level="o0"), *EVERY_HALF)
BATCH = 4


def name(amp: Amp) -> str:
    return amp.level if amp.level == "o0" else f"{amp.level}-{amp.dtype}"


def observed(reports: list[dict[str, Any]], planned: Collection[int] = ()) -> dict[str, Any]:
    """result.json's "observed" from the reports of all ranks. Collective."""
    ranks = distributed.is_initialized()
    by_rank: list[Any] = [None] * (distributed.get_world_size() if ranks else 1)
    if ranks:
        distributed.all_gather_object(by_rank, reports)
    return verdict.observed([report for own in by_rank for report in own] if ranks else reports, planned)


class Cnn(nn.Sequential):
    """The MNIST recipe's layers, narrower, on images of [batch, 1, 12, 12]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 32),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(32, 10),
        )

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(BATCH, 1, 12, 12)


class Transformer(nn.Module):
    """One encoder layer over sequences of [batch, 12, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(sequences).mean(1))

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(BATCH, 12, 32)


class GroupedConvolutions(nn.Sequential):
    """Grouped, depthwise and transposed convolutions with a norm, on [batch, 8, 16]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(8, 32, 3, groups=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 32, 3, groups=32),
            nn.ConvTranspose1d(32, 16, 3, groups=4),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        )

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(BATCH, 8, 16)


class Dense(nn.Module):
    """Two linear layers of [batch, 32]; what computes them can be swapped."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.second = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(functional.relu(self.first(inputs)))

    @staticmethod
    def images() -> torch.Tensor:
        return torch.randn(BATCH, 32)


class HalfInside(Dense):
    """A layer in half precision whatever the level is."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second((inputs.bfloat16() @ self.first.weight.bfloat16().t()).float())


def orthogonalized(gradient: torch.Tensor) -> torch.Tensor:
    half = gradient.bfloat16()
    return (half @ half.t() @ half).to(gradient.dtype)


class HalfOptimizer(torch.optim.SGD):
    """Multiplies gradients in bfloat16, as Muon does."""

    def __init__(self, weights: Any, change: Callable[[torch.Tensor], torch.Tensor] = orthogonalized) -> None:
        super().__init__(weights, lr=0.01)
        self.change = change

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and parameter.ndim == 2:
                parameter.grad.add_(self.change(parameter.grad), alpha=1e-3)
        return super().step(closure)


class Training:
    """A training run of a few steps, of which some are watched."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        amp: Amp,
        *,
        scale: LossScale | None = None,
        compile: bool = False,
        prepare: Callable[[Training], None] = lambda training: None,
        make_optimizer: Callable[[Any], torch.optim.Optimizer] = lambda weights: torch.optim.SGD(weights, lr=0.01),
    ) -> None:
        torch.manual_seed(0)
        # A scale that a few steps can't overflow: a skipped step shows no masters.
        scale = scale or LossScale(init=8.0)
        self.precision = Precision(amp, loss_scale=scale, device=torch.device("cpu"))
        self.net = self.precision.prepare(make())
        self.model: Any = torch.compile(self.net) if compile else self.net
        self.optimizer = self.precision.prepare(make_optimizer(self.net.parameters()))
        prepare(self)
        self.observer = PrecisionObserver(self.model, self.precision.resolved)

    def step(self) -> torch.Tensor:
        images, labels = self.net.images(), torch.randint(0, 10, (BATCH,))
        with self.precision:
            loss = functional.cross_entropy(self.model(images).float(), labels)
        self.precision.backward(loss)
        self.precision.step(self.optimizer)
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, steps: int = 3, watched: Collection[int] = (1, 3)) -> dict[str, Any]:
        """What was observed."""
        for number in range(1, steps + 1):
            with self.observer.step(number) if number in watched else contextlib.nullcontext():
                self.step()
        return observed(self.observer.reports, watched)


def run(make: Callable[[], nn.Module], amp: Amp, **options: Any) -> dict[str, Any]:
    """What was observed of three steps, the first and the last watched."""
    return Training(make, amp, **options).run()


def proved(observed: dict[str, Any]) -> dict[str, Any]:
    """What was observed, which has to be proved."""
    assert observed["verdict"] == "proved", observed["why"]
    return observed


def report_of(make: Callable[[], nn.Module], amp: Amp, **options: Any) -> dict[str, Any]:
    """The report of one observed step."""
    training = Training(make, amp, **options)
    training.run(1, watched={1})
    return training.observer.reports[0]


def trained_state(make: Callable[[], nn.Module], amp: Amp, watched: Collection[int], **options: Any) -> list[Any]:
    """Weights, momentum and random state after three steps of which these are observed."""
    options.setdefault("make_optimizer", lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9))
    training = Training(make, amp, **options)
    torch.manual_seed(1)
    training.run(3, watched)
    momenta = [entry["momentum_buffer"] for entry in training.optimizer.state_dict()["state"].values()]
    return [*training.net.state_dict().values(), *momenta, torch.get_rng_state()]
