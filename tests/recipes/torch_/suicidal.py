"""The MNIST trainer, which kills itself with SIGKILL where the environment says.

KILL_AT_STEP=n: before the optimizer's n-th step of this process, so after backward. KILL_AT_RENAME=n: before its n-th
rename of a folder, so with a checkpoint written and not yet in place. KILL_RANK: on that rank alone, 0 unless said.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from torch.optim.optimizer import register_optimizer_step_pre_hook

from recipes.torch_ import loop, mnist

count = {"steps": 0, "renames": 0}


def die_at(kind: str, limit: str) -> None:
    count[kind] += 1
    if count[kind] == int(os.environ.get(limit, "-1")):
        os.kill(os.getpid(), signal.SIGKILL)


def rename(*arguments: Any) -> None:
    die_at("renames", "KILL_AT_RENAME")
    real_rename(*arguments)


if os.environ.get("RANK", "0") == os.environ.get("KILL_RANK", "0"):
    register_optimizer_step_pre_hook(lambda *_: die_at("steps", "KILL_AT_STEP"))
    real_rename, os.rename = os.rename, rename

loop.start("mnist", mnist.train)
