"""Read by Python at its start where this folder is on its path: a trainer that leaves time to do something to it.

PACE: seconds that each optimizer step takes longer. PACE_SAVE: seconds before a checkpoint is put into its place.
"""

from __future__ import annotations

import os
import time
from typing import Any


def slow_down() -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    step, save = (float(os.environ.get(name, "0")) for name in ("PACE", "PACE_SAVE"))
    register_optimizer_step_pre_hook(lambda *_: time.sleep(step))
    rename = os.rename

    def after_a_while(source: Any, target: Any) -> None:
        if os.path.basename(target).startswith("step-"):
            time.sleep(save)
        rename(source, target)

    os.rename = after_a_while


if "PACE" in os.environ:
    slow_down()
