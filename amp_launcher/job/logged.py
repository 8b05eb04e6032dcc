"""`log` of `amp_launcher.job`: a script's own loss, samples and other figures of a step. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """The arguments of one call of `log`."""

    step: int
    loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    """Several losses by name; `loss` is their sum."""
    samples: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)
    held_out: Mapping[str, float] = field(default_factory=dict)
    """`accuracy` and `loss` on held-out samples."""
    by_library: bool = False
    """Whether a training library logs it, of which the script need not know."""


@dataclass(slots=True)
class Receiver:
    """The function that gets this process's calls of `log`; None without a launcher."""

    receive: Callable[[Logged], None] | None = None


receiver = Receiver()


def log(step: int, *, loss: Any = None, samples: Any = None, **more: Any) -> None:
    """Record figures of a step in the run's metrics, on rank 0; without a launcher, print them.

    `step` is the script's own number of the optimizer step, which was just taken or comes next. `loss` is a number, or
    several losses by name. `samples` is the number of samples of all ranks since the last call, for samples/s. Of
    `more`, `lr`, `grad_norm`, `epoch` (from 0) and `accuracy` (on held-out data) are shown as a recipe's, others as
    curves. Values are numbers or tensors of one element; reading one on a GPU waits for it.

    Raises `loop.divergence.Diverged` where the loss is NaN or Inf for good, `TypeError` for a value that is not a
    number, and `ValueError` for a negative number of samples.
    """
    losses = _named(loss) if isinstance(loss, Mapping) else {}
    alone = None if isinstance(loss, Mapping) else _number("loss", loss)
    logged = Logged(
        step=int(step),
        loss=sum(losses.values()) if losses else alone,
        losses=losses,
        samples=_number("samples", samples),
        more=_named(more),
    )
    if logged.samples is not None and logged.samples < 0:
        raise ValueError(f"job.log: samples={samples} is less than 0")
    if receiver.receive is not None:
        receiver.receive(logged)
    elif os.environ.get("RANK", os.environ.get("LAUNCHER_TASK", "0")) == "0":
        print(_line(logged), flush=True)


def _named(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: _number(name, value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(name: str, value: Any) -> float | None:
    try:
        return None if value is None else float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError):  # the latter torch's, of several elements
        raise TypeError(f"job.log: {name}={value!r} is not a number") from None


def _line(logged: Logged) -> str:
    values = {"loss": logged.loss, **logged.losses, "samples": logged.samples, **logged.more}
    return "  ".join(
        [f"step {logged.step}", *(f"{name} {value:.6g}" for name, value in values.items() if value is not None)]
    )
