"""A temporary folder for benchmarks, with its own state folder, so that no other runs are seen or touched."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import Measured, Skipped

OUT = Path(__file__).parent / "out"
RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).parent / "peers"
PYTHON = sys.executable


def run(place: str) -> Measured:
    """Run the benchmark `module:function[:argument ...]` in such a folder, in this process. Raises `Skipped`."""
    module, function, *arguments = place.split(":")
    benchmark = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        return benchmark(Path(folder), *arguments)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This process's environment with the launcher's state in `folder`, without variables of a surrounding job. Python
    keeps the bytecode of modules: without it each start would compile all of them again."""
    left_out = ("SLURM_", "SBATCH_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**kept, "XDG_STATE_HOME": str(folder / "state"), **more}


def launcher(*words: str) -> list[str]:
    """`python -m launcher` as a person types it."""
    return [PYTHON, "-m", "launcher", *words]


def testbed(servers: str) -> dict[str, Any]:
    """The state of the testbed. Raises `Skipped` if its servers whose names begin so are not up."""
    root = Path(__file__).parent.parent
    argv = [sys.executable, "-m", "tests.testbed", "status", "--json"]
    known = json.loads(subprocess.run(argv, cwd=root, capture_output=True, text=True).stdout or "{}")
    pids = [pid for name, pid in known.get("servers", {}).items() if name.startswith(servers)]
    if not pids or None in pids:
        raise Skipped(f"the testbed with the real {servers} is not up here; `make testbed` brings it up")
    return dict(known)
