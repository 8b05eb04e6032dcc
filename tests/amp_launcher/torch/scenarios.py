"""The scenarios of a test module on two gloo ranks, all in one pair of processes."""

from __future__ import annotations

import contextlib
import importlib
import json
import traceback
from collections.abc import Iterator
from pathlib import Path

from torch import distributed

from tests.amp_launcher.forking import Forked

RANKS = 2


@contextlib.contextmanager
def calling_for_kernels() -> Iterator[None]:
    """Inductor compiles all but its kernels: its code calls torch's own operations in their place. The graph that is
    observed is the same, and the C++ compiler, which takes most of the time, isn't needed."""
    from torch._inductor import config

    has_option = hasattr(config, "fallback_by_default")
    with config.patch(fallback_by_default=True) if has_option else contextlib.nullcontext():
        yield


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
            with calling_for_kernels():
                scenario(rank)
        except Exception:  # whatever it is, the other scenarios run
            problem = traceback.format_exc()
        of_ranks = [""] * RANKS
        distributed.all_gather_object(of_ranks, problem)
        if rank == 0:
            with open(file, "a") as stream:
                print(json.dumps([name, "\n".join(filter(None, of_ranks))]), file=stream)
    distributed.destroy_process_group()
