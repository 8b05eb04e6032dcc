"""What a job of a multirun does, in its own process."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

VERDICT = "launcher-result.json"
"""In the output folder of a job that was asked for a mode: its result, with what was observed."""


class Application(NamedTuple):
    """What all jobs share."""

    hydra_context: HydraContext
    task_function: TaskFunction
    config: DictConfig
    singletons: Mapping[Any, Any]
    """Hydra's state in the process that submits, resolvers included."""


@dataclass(frozen=True)
class Job:
    """A call of the application with overrides."""

    application: bytes
    """An `Application`, pickled once for all jobs of a batch."""
    overrides: Sequence[str]
    number: int
    swept: tuple[tuple[str, str], ...]
    """The overrides in which the jobs of its batch differ, for tables of runs."""
    defined_in: str
    """The file of the application."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__name__", ",".join("=".join(pair) for pair in self.swept) or "job")

    def __call__(self) -> JobReturn:
        """What Hydra returns of the job. Raises what the application raised, so that the run has failed too."""
        run_id = os.environ["LAUNCHER_RUN_ID"]
        run = f"{os.environ['LAUNCHER_SPEC'].partition(f'/{run_id}/')[0]}/{run_id}"
        context, task_function, common, singletons = pickle.loads(self.application)
        Singleton.set_state(singletons)
        setup_globals()
        config = context.config_loader.load_sweep_config(common, list(self.overrides))
        with open_dict(config.hydra.job):
            config.hydra.job.id = run_id
            config.hydra.job.num = self.number
        HydraConfig.instance().set_config(config)
        try:
            done = run_job(
                hydra_context=context,
                task_function=task_function,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        finally:
            output = OmegaConf.select(config, "hydra.runtime.output_dir")
            if output and os.environ.get("LAUNCHER_TASK", "0") == "0":
                atexit.register(leave_result, run, output)  # its verdict is given when the job has returned
        if done.status == JobStatus.FAILED:
            raise done._return_value
        return done


class JobAgain(Job):
    """One that is started again, as it was, after its time limit."""

    def checkpoint(self) -> SimpleNamespace:
        """As submitit's method, which may not be where it runs."""
        return SimpleNamespace(function=self, args=(), kwargs={})


def leave_result(run: str, output: str) -> None:
    """Copy a run's result, if it has one, into the output folder of its job."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(f"{run}/result.json", f"{output}/{VERDICT}")
