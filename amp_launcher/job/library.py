"""What the callbacks of training libraries ask of their job: `log` and `should_stop` as a guest may call them. Standard
library only."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from amp_launcher.job import logged, stop
from amp_launcher.job.logged import Logged
from amp_launcher.world import preemption

HELD_OUT = re.compile(r"(val|valid|validation|eval)[_/]")
TRAINING_LOSS = re.compile(r"((train|training)[_/])?loss(_step)?")
_NAMES = {"lr": "lr", "learning_rate": "lr", "grad_norm": "grad_norm"}

spawned_ranks = 0
"""How many ranks the script spawns itself, each with the launcher in it: while they are spawned, and in them."""


def log(step: int, metrics: Mapping[str, Any], loss: Any = None) -> None:
    """Give the launcher what a library logged at this optimizer step, counted from 1; without one, do nothing.

    `loss` is that of the step, where `metrics` have none under a usual name. What isn't a number is left out. A script
    that calls `job.log` itself is left to that.
    """
    if logged.receiver.receive is None:
        return
    numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
    held_out = held_out_names(numbers)
    losses = [name for name in numbers if TRAINING_LOSS.fullmatch(name)]
    others = {
        _NAMES.get(name, f"train_{name}" if name in ("accuracy", "epoch") else name): number
        for name, number in numbers.items()
        if name not in losses and name not in held_out.values()
    }
    named = numbers[min(losses, key=lambda name: not name.endswith("_step"))] if losses else _number(loss)
    logged.receiver.receive(
        Logged(
            step=step,
            loss=named,
            more=others,
            held_out={measure: numbers[name] for measure, name in held_out.items()},
            by_library=True,
        )
    )


def should_stop() -> bool:
    """`job.should_stop` that leaves TERM as it is: processes that the script forks would ignore it."""
    return stop.asked(catch_term=False)


def script_handles_stop() -> bool:
    """Whether the script has a handler of its own for a signal by which it is asked to stop."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2):
        handler = signal.getsignal(number)
        if callable(handler) and handler is not signal.default_int_handler and not preemption.catches(number):
            return True
    return False


def held_out_names(names: Iterable[str]) -> dict[str, str]:
    """The names among these of `accuracy` and `loss` on held-out samples; the shortest where there are several losses,
    as `val_loss` is the sum of `val_head1_loss` and `val_head2_loss`."""
    held_out = [name for name in names if HELD_OUT.match(name)]
    accuracies = [name for name in held_out if name.endswith(("accuracy", "acc"))]
    losses = sorted((name for name in held_out if name.endswith("loss")), key=len)
    return {measure: named[0] for measure, named in (("accuracy", accuracies), ("loss", losses)) if named}


def _number(value: Any) -> float | None:
    """Waits for the device where the value is there."""
    try:
        return None if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, RuntimeError):  # the latter torch's, of several elements
        return None
