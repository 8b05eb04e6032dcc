"""Slurm as a submitit executor, here or behind a login node."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from submitit.slurm import slurm

from launcher.executors.base import Parameters, PlanExecutor


def gpus_of(gres: str) -> str:
    """The value of `gpus` for `gpu`, `gpu:2` or `gpu:a100:2`. Raises `ValueError` for anything else."""
    match = re.fullmatch(r"gpu(?::(?P<gpus>\d+|[^:,]+:\d+))?", gres)
    if match is None:
        raise ValueError(f"slurm_gres={gres!r}: should be gpu:2, or gpu:a100:2")
    return match["gpus"] or "1"


class SlurmExecutor(PlanExecutor, slurm.SlurmExecutor):  # type: ignore[misc] # a SlurmJob would ask sacct
    """Submits runs with sbatch; the runs of a batch are a job array for each shape of resources.

    `login` is a login node to submit from over SSH.
    """

    kind = "slurm"
    PARAMETERS: ClassVar[Parameters] = {
        **PlanExecutor.PARAMETERS,
        "mem_gb": lambda gigabytes: f"cluster.mem={round(1024 * gigabytes)}M",
        "cpus_per_task": "cluster.cpus={}".format,
        "slurm_account": "cluster.account={}".format,
        "slurm_array_parallelism": "cluster.parallel={}".format,
        "slurm_constraint": "cluster.constraint={}".format,
        "slurm_exclude": "cluster.exclude={}".format,
        "slurm_gres": lambda gres: f"gpus={gpus_of(gres)}",
        "slurm_partition": "cluster.partition={}".format,
        "slurm_qos": "cluster.qos={}".format,
        "slurm_setup": lambda lines: f"cluster.setup={json.dumps(lines, ensure_ascii=False)}",
        "slurm_signal_delay_s": "cluster.stop_before={}".format,
        "slurm_wckey": "cluster.wckey={}".format,
    }

    def __init__(self, folder: str | Path | None = None, words: Sequence[str] = (), login: str | None = None) -> None:
        super().__init__(folder, (*([f"cluster.login={login}"] if login else ()), *words))
