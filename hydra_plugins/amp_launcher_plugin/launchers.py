"""The launchers `amp_local` and `amp_slurm`, and their keys under `hydra.launcher`.

Every Hydra application imports this file to find plugins, so it imports Hydra alone; the rest is in `_multirun`. Hydra
runs it before it is in `sys.modules`, so annotations can't be texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class _Launcher(Launcher):
    """What both share. Its arguments are the keys of `hydra.launcher`."""

    PLACE = ""
    """The value of `cluster`."""

    def __init__(self, **keys: Any) -> None:
        self.keys = {key: OmegaConf.to_container(to) if OmegaConf.is_config(to) else to for key, to in keys.items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from hydra_plugins.amp_launcher_plugin import _multirun

        return _multirun.launch(self, job_overrides, initial_job_idx)


class LocalLauncher(_Launcher):
    """This machine: the jobs run in turn."""

    PLACE = "local"


class SlurmLauncher(_Launcher):
    """Slurm: the jobs are one array."""

    PLACE = "slurm"


@dataclass
class LocalConf:
    """Keys of both. What is null is left to the launcher."""

    _target_: str = "hydra_plugins.amp_launcher_plugin.launchers.LocalLauncher"
    wait: bool = True
    """Return when the jobs have ended, as Hydra expects; false returns when they are submitted."""
    run_root: str | None = None
    """The folder of runs."""
    words: list[str] = field(default_factory=list)
    """Further settings, as the launcher's command line takes them."""
    amp: str | None = None
    """The mode to apply and to prove; null leaves the application alone, and unobserved."""
    container: str | None = None
    image: str | None = None
    mounts: list[str] = field(default_factory=list)
    python: str | None = None
    name: str | None = "${hydra.job.name}"
    timeout_min: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem_gb: float | None = None
    nodes: int | None = 1
    tasks_per_node: int | None = 1


@dataclass
class SlurmConf(LocalConf):
    """Keys of Slurm. What is null is left to the cluster."""

    _target_: str = "hydra_plugins.amp_launcher_plugin.launchers.SlurmLauncher"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    gres: str | None = None
    wckey: str | None = None
    signal_delay_s: int | None = None
    max_num_timeout: int = 0
    """How often a job is started again with the same overrides after its time limit."""
    array_parallelism: int | None = None
    setup: list[str] | None = None


for _name, _node in (("amp_local", LocalConf), ("amp_slurm", SlurmConf)):
    ConfigStore.instance().store(group="hydra/launcher", name=_name, node=_node, provider="amp_launcher")
