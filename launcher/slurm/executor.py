"""Slurm as a submitit executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.executors import ScriptExecutor
from launcher.slurm import submit


class SlurmExecutor(ScriptExecutor):
    """Submits prepared run folders with sbatch, which returns once Slurm has accepted them."""

    max_array_size: int = submit.MAX_ARRAY_SIZE

    def start(self, folders: Sequence[Path]) -> None:
        submit.start(folders, self.max_array_size)
