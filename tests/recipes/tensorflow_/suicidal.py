"""A trainer that kills itself with SIGKILL where the environment says: `suicidal.py RECIPE WORD ...`.

KILL_AT_STEP=n: before its n-th execution. KILL_AT_RENAME=n: before its n-th rename of a folder, so with a checkpoint
written and not yet in place.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from recipes.tensorflow_ import executor, loop

count = {"KILL_AT_STEP": 0, "KILL_AT_RENAME": 0}
real_execute, real_rename = executor.Steps.execute, os.rename


def die_in_time(limit: str) -> None:
    count[limit] += 1
    if count[limit] == int(os.environ.get(limit, "-1")):
        os.kill(os.getpid(), signal.SIGKILL)


def execute(*arguments: Any) -> Any:
    die_in_time("KILL_AT_STEP")
    return real_execute(*arguments)


def rename(*arguments: Any) -> None:
    die_in_time("KILL_AT_RENAME")
    real_rename(*arguments)


executor.Steps.execute, os.rename = execute, rename

recipe = sys.argv.pop(1)
loop.start(recipe, importlib.import_module(f"recipes.tensorflow_.{recipe}").train)
