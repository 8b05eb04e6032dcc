"""The trainer of RECIPE, by default mnist, which kills itself with SIGKILL as the environment requests.

KILL_AT_BACKWARD=n: after the n-th backward of this process, so before its optimizer's step. KILL_AT_RENAME=n: before
its n-th rename of a folder, so with a checkpoint written and not yet in place. KILL_RANK: on that rank alone, by
default 0.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import torch

from amp_launcher.torch import loop

count = {"KILL_AT_BACKWARD": 0, "KILL_AT_RENAME": 0}
real_backward, real_rename = torch.Tensor.backward, os.rename


def die_in_time(limit: str) -> None:
    count[limit] += 1
    if count[limit] == int(os.environ.get(limit, "-1")):
        os.kill(os.getpid(), signal.SIGKILL)


def backward(*arguments: Any, **options: Any) -> None:
    real_backward(*arguments, **options)
    die_in_time("KILL_AT_BACKWARD")


def rename(*arguments: Any) -> None:
    die_in_time("KILL_AT_RENAME")
    real_rename(*arguments)


if os.environ.get("RANK", "0") == os.environ.get("KILL_RANK", "0"):
    torch.Tensor.backward, os.rename = backward, rename  # type: ignore[method-assign]

recipe = os.environ.get("RECIPE", "mnist")
loop.start(recipe, importlib.import_module(f"amp_launcher.recipes.{recipe}.train_torch").train)
