"""Slurm as a submitit executor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from launcher.executors.base import ScriptExecutor
from launcher.executors.slurm import submit


class SlurmExecutor(ScriptExecutor):
    """Submits prepared run folders with sbatch, which returns once Slurm has accepted them."""

    def start(self, folders: Sequence[Path]) -> None:
        submit.start(folders)
