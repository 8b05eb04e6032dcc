"""For recipes that learn labels: the step over micro-batches, and the measures on held-out samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_launcher.torch.loop import Run, Step
from amp_launcher.torch.precision import StepOutcome

UNCOUNTED = -100
"""A label that torch's cross-entropy leaves out."""


def make_step(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Any], torch.Tensor],
    clip: float | None = None,
) -> Step:
    """A step that adds up the gradients of its micro-batches.

    `model` is the wrapped one; `loss_of` gives the float32 mean loss of one micro-batch, whatever these are.
    """

    def step(batch: Any) -> tuple[torch.Tensor, StepOutcome]:
        loss = accumulate(run, model, optimizer, batch, loss_of)
        outcome = run.precision.step(optimizer, clip=clip)
        optimizer.zero_grad()
        return loss, outcome

    return step


def accumulate(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Any],
    loss_of: Callable[[Any], torch.Tensor],
) -> torch.Tensor:
    """Add up the gradients of the micro-batches in `batch`, reduced over the ranks with the last; returns the mean
    loss. The arguments are as in `make_step`."""
    total = torch.zeros((), device=run.world.device)
    for number, chosen in enumerate(batch, start=1):
        with run.world.gradients(model, last=number == len(batch)):
            with run.precision:
                loss = loss_of(chosen) / len(batch)
            run.precision.backward(loss, optimizer)
        total += loss.detach()
    return total


@torch.no_grad()
def measure(
    run: Run, net: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], count: int
) -> dict[str, float]:
    """Accuracy and mean loss over `count` labels, of which `batches` are this rank's, with the inputs. Collective.

    All ranks measure with rank 0's statistics of norms, which are what its checkpoint has.
    """
    correct, loss = 0.0, 0.0
    run.world.agree_on_statistics(net)
    net.eval()
    for inputs, labels in _equally_many(run, batches):
        with run.precision:
            logits = net(inputs).flatten(0, -2)
        labels = labels.flatten()
        correct += (logits.argmax(1) == labels).sum().item()
        loss += cross_entropy(logits, labels, reduction="sum").item()
    net.train()
    correct, loss = run.world.sum([correct, loss])
    return {"accuracy": correct / count, "loss": loss / count}


def _equally_many(
    run: Run, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches; of a sharded model as many on every rank, since each forward gathers weights from all of them.

    A rank that has no more gets a sample of rank 0, with labels that neither count as correct nor have a loss.
    """
    if run.world.mesh is None:
        yield from batches
        return
    own = iter(batches)
    batch = next(own, None)
    # Cloned: a view would be sent with all of the batch that it is a part of.
    first: Any = None if batch is None else tuple(tensor[:1].cpu().clone() for tensor in batch)
    inputs, labels = run.world.broadcast(first)
    spare = inputs.to(run.world.device), torch.full_like(labels, UNCOUNTED, dtype=torch.int64, device=run.world.device)
    while run.world.sum([float(batch is not None)])[0]:
        yield spare if batch is None else batch
        batch = next(own, None)


class Images(Protocol):
    """Images with their labels, as NumPy arrays with one entry each."""

    @property
    def images(self) -> numpy.ndarray: ...

    @property
    def labels(self) -> numpy.ndarray: ...


def to_device(part: Images, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """All images and labels, in the device's memory: loading is then an indexing on the device."""
    return torch.from_numpy(part.images).to(device), torch.from_numpy(part.labels).to(device)


@torch.no_grad()
def draw_glorot(net: nn.Module) -> None:
    """Initial weights as Keras and Paddle draw them: uniform, by Glorot and Bengio; biases zero."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
