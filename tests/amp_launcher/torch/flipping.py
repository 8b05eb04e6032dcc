"""A trainer in which a bit of a weight flips in memory: after step FLIP_AT, on rank FLIP_RANK, in the tensor FLIP."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from amp_launcher.recipes.simplenet import train_torch as simplenet
from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run


def flip(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of the first byte, as a fault does: no version counter of torch's sees it."""
    tensor.detach().reshape(-1).view(torch.uint8).numpy()[0] ^= 1


def flipping(train: Callable[[Run], None], at: int, name: str, rank: int = 0) -> Callable[[Run], None]:
    """The recipe's `train` with a flipped bit after step `at`, in a weight by its name in the model."""

    def sabotaged(run: Run) -> None:
        fit = run.fit

        def fit_and_flip(*, step: Callable[[Any], Any], model: torch.nn.Module, **others: Any) -> None:
            done = 0

            def flip_after(batch: Any) -> Any:
                nonlocal done
                outcome = step(batch)
                done += 1
                if done == at and run.world.rank == rank:
                    flip(dict(model.named_parameters())[name])
                return outcome

            fit(step=flip_after, model=model, **others)

        run.fit = fit_and_flip  # type: ignore[method-assign]
        train(run)

    return sabotaged


if __name__ == "__main__":
    at, rank = int(os.environ.get("FLIP_AT", "0")), int(os.environ.get("FLIP_RANK", "0"))
    loop.start("simplenet", flipping(simplenet.train, at, os.environ.get("FLIP", ""), rank))
    sys.exit(1)
