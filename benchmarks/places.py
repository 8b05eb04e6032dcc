"""Where benchmarks work: a throwaway folder, with its own state folder, so that nobody's runs are seen or touched."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OUT = Path(__file__).parent / "out"
RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).parent / "peers"
PYTHON = sys.executable


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This process's environment with the launcher's state in `folder`, and without what a job around us has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    return {**kept, "XDG_STATE_HOME": str(folder / "state"), **more}


def launcher(*words: str) -> list[str]:
    """`python -m launcher` as a person types it."""
    return [PYTHON, "-m", "launcher", *words]
