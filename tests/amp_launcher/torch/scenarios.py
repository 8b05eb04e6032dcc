"""The scenarios of a test module on two gloo ranks, all in one pair of processes."""

from __future__ import annotations

import importlib
import json
import traceback
from pathlib import Path

from torch import distributed

from tests.amp_launcher.forking import Forked

RANKS = 2


def problems(module: str, folder: Path) -> dict[str, str]:
    """By name, the tracebacks of each function of the module's SCENARIOS, called with the rank; empty where it passed.

    A scenario that hangs ends them all: the ones after it are missing.
    """
    file = folder / "problems"
    file.touch()
    done = Forked(_take_part, (module, file), ranks=RANKS).complete()
    tracebacks = dict(json.loads(line) for line in file.read_text().splitlines())
    assert done.returncode == 0, f"{done.stderr}\nended after {list(tracebacks)}"
    return tracebacks


def _take_part(module: str, file: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for name, scenario in importlib.import_module(module).SCENARIOS.items():
        problem = ""
        try:
            scenario(rank)
        except Exception:  # whatever it is, the other scenarios run
            problem = traceback.format_exc()
        of_ranks = [""] * RANKS
        distributed.all_gather_object(of_ranks, problem)
        if rank == 0:
            with open(file, "a") as stream:
                print(json.dumps([name, "\n".join(filter(None, of_ranks))]), file=stream)
    distributed.destroy_process_group()
