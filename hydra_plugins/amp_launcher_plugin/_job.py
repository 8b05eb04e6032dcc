"""What a job of a multirun does, in its own process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


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

    @property
    def __name__(self) -> str:
        return ",".join("=".join(pair) for pair in self.swept) or "job"

    def __call__(self) -> JobReturn:
        """What Hydra returns of the job. Raises what the application raised, so that the run has failed too."""
        context, task_function, common, singletons = pickle.loads(self.application)
        Singleton.set_state(singletons)
        setup_globals()
        config = context.config_loader.load_sweep_config(common, list(self.overrides))
        with open_dict(config.hydra.job):
            config.hydra.job.id = os.path.basename(os.path.dirname(os.environ["LAUNCHER_SPEC"]))
            config.hydra.job.num = self.number
        HydraConfig.instance().set_config(config)
        done = run_job(
            hydra_context=context,
            task_function=task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        if done.status == JobStatus.FAILED:
            raise done._return_value
        return done
