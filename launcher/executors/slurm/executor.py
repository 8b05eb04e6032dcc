"""Slurm as a submitit executor, here or behind a login node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from submitit.slurm import slurm

from launcher.executors.base import Parameters, PlanExecutor
from launcher.executors.slurm import submit
from launcher.plan.model import Plan


class SlurmExecutor(PlanExecutor, slurm.SlurmExecutor):  # type: ignore[misc] # a SlurmJob would ask sacct
    """Submits runs with sbatch; the runs of a batch are a job array for each shape of resources.

    The script, the command and the job's id go through submitit's own hooks, so that a subclass may change them.
    `login` is a login node to submit from over SSH; there no hook is asked.
    """

    kind = "slurm"
    PARAMETERS: ClassVar[Parameters] = {
        **PlanExecutor.PARAMETERS,
        "timeout_min": "cluster.time={}".format,
        "mem_gb": lambda gigabytes: f"cluster.mem={round(1024 * gigabytes)}M",
        "nodes": "nodes={}".format,
        "cpus_per_task": "cluster.cpus={}".format,
        "slurm_account": "cluster.account={}".format,
        "slurm_array_parallelism": "cluster.parallel={}".format,
        "slurm_constraint": "cluster.constraint={}".format,
        "slurm_partition": "cluster.partition={}".format,
        "slurm_qos": "cluster.qos={}".format,
        "slurm_setup": lambda lines: f"cluster.setup={json.dumps(lines)}",
        "slurm_signal_delay_s": "cluster.stop_before={}".format,
        "slurm_wckey": "cluster.wckey={}".format,
    }

    def __init__(self, folder: str | Path | None = None, words: Sequence[str] = (), login: str | None = None) -> None:
        super().__init__(folder, (*([f"cluster.login={login}"] if login else ()), *words))

    def _start(self, folders: Sequence[Path], plans: Sequence[Plan]) -> None:
        hooks = submit.Hooks(
            self._make_submission_file_text,
            self._make_submission_command,
            self._get_job_id_from_submission_command,
        )
        submit.start(folders, plans, hooks)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        """The script to submit, from `command`, which is that of the plan or of the array, `#SBATCH` lines included."""
        return command

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        """The words of the submission, the last of which is the script; options are put before it."""
        return submit.command(submission_file_path)

    @staticmethod
    def _get_job_id_from_submission_command(string: Any) -> str:
        return submit.job_id(string)
