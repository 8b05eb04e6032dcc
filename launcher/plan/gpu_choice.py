"""The GPUs of a job: how many on each node, which of this machine's, and what shows them to it. Pure."""

from __future__ import annotations

from amp_launcher.precision.levels import Device
from amp_launcher.typed import SettingsError, show
from launcher.config.schema import SlurmCluster
from launcher.config.spec import JobSpec
from launcher.errors import Unavailable
from launcher.plan import slurm_check
from launcher.probe import gpu_locks, gpu_names
from launcher.probe.facts import Facts, Gpu


def choose(spec: JobSpec, facts: Facts) -> tuple[tuple[Gpu, ...], int]:
    """The GPUs that a job may get, and how many of them on each node; Slurm's are not known before it runs. Raises
    `SettingsError` for what isn't there."""
    launch = spec.launch
    if isinstance(launch.cluster, SlurmCluster):
        return (), _of_a_node(spec, launch.cluster, facts)
    gpus = _here(spec, facts)
    return gpus, len(gpus) if launch.gpus is None else int(launch.gpus)


def device(spec: JobSpec, facts: Facts, count: int) -> Device:
    """What trains, for a job with so many GPUs. Raises `SettingsError` for CUDA without one."""
    asked = spec.training.device
    chosen: Device = asked if asked != "auto" else ("cuda" if count else "cpu")
    if chosen == "cuda" and not count:
        why = facts.gpu_problem or f"{facts.host} has {_what_is_there(facts)}"
        raise SettingsError(f"device=cuda, and this job has no GPU: {why}; say device=cpu")
    return chosen


def processes(spec: JobSpec, gpus: int) -> tuple[int, int]:
    """How many processes a node has, and how many devices they train on together."""
    if spec.recipe.name == "script":
        processes = spec.training.train.processes
        return processes, processes
    devices = max(1, gpus)
    return (1 if spec.training.framework == "tensorflow" else devices), devices


def check_free(spec: JobSpec, facts: Facts, pool: tuple[Gpu, ...], count: int) -> None:
    """Refuse what could only be refused when it starts. Raises `Unavailable`."""
    waits = spec.launch.wait_gpus or spec.launch.after is not None  # the other run may be on them now
    why = gpu_locks.refusal(count, pool, facts.host) if pool and not waits else ""
    if why:
        raise Unavailable(why)


def environment(indices: tuple[str, ...] | None, slurm: bool, contained: bool) -> dict[str, str]:
    """What shows a job its GPUs, where that is not the business of its container or of Slurm. `indices` is None where
    they are chosen when it starts."""
    if contained:
        return {}
    # Without the order, index 0 is the fastest GPU rather than the first on the bus that nvidia-smi calls 0.
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return order if slurm or indices is None else {**order, "CUDA_VISIBLE_DEVICES": ",".join(indices)}


def _here(spec: JobSpec, facts: Facts) -> tuple[Gpu, ...]:
    """The GPUs of which a job on this machine gets as many as it asks for, free ones. Without a number it gets all, so
    that what a run computes never depends on who else is there."""
    launch = spec.launch
    if launch.visible_gpus is not None:
        by_index = {gpu.index: gpu for gpu in facts.gpus}
        for index in launch.visible_gpus:
            if index not in by_index:
                raise SettingsError(
                    f"visible_gpus={show(launch.visible_gpus)}: there is no GPU {index} on {facts.host}, "
                    f"which has {_what_is_there(facts)}",
                )
        chosen = tuple(by_index[index] for index in launch.visible_gpus)
    elif launch.gpus is None:
        return () if spec.training.device == "cpu" else facts.gpus
    else:
        chosen = facts.gpus if launch.gpus else ()
    fitting = chosen
    if launch.gpus is not None and launch.gpus.kind:
        fitting = tuple(gpu for gpu in chosen if gpu_names.is_of_type(gpu.name, launch.gpus.kind))
    if launch.gpus is not None and launch.gpus > len(fitting):
        raise SettingsError(f"gpus={launch.gpus}: {facts.host} has {_what_is_there(facts)}")
    return fitting


def _of_a_node(spec: JobSpec, cluster: SlurmCluster, facts: Facts) -> int:
    """GPUs per node. Without `gpus`, our own recipes get all GPUs of a node of the partition; a script gets one for
    each process that is started, since it may not use more; device=cpu gets none. Raises `SettingsError`."""
    if spec.launch.gpus is not None:
        return int(spec.launch.gpus)
    if spec.training.device == "cpu":
        return 0
    assert facts.slurm is not None
    partition = slurm_check.find_partition(cluster, facts.slurm)
    available = partition.gpus_per_node if partition else 0
    if spec.recipe.name != "script":
        return available
    device, wanted = spec.training.device, spec.training.train.processes
    if not available and (partition or device == "auto"):
        return 0
    if partition and wanted > available:
        raise SettingsError(
            f"train.processes={wanted}: each process takes a GPU, and no node of partition {partition.name} has more "
            f"than {available}; say gpus={available} to share them, or device=cpu",
        )
    return int(wanted)


def advice(spec: JobSpec, facts: Facts, count: int) -> tuple[str, ...]:
    """How many GPUs a script gets under Slurm, where `gpus` is not set."""
    cluster = spec.launch.cluster
    chosen = spec.launch.gpus is not None or spec.training.device == "cpu"
    if chosen or spec.recipe.name != "script" or not isinstance(cluster, SlurmCluster):
        return ()
    assert facts.slurm is not None
    partition = slurm_check.find_partition(cluster, facts.slurm)
    if count:
        of = f" of the {partition.gpus_per_node} that nodes of partition {partition.name} have" if partition else ""
        devices = f"{count} GPU{'s' * (count > 1)} per node{of}, one for each process of the script"
        return (f"the job takes {devices}; train.processes=N starts more, gpus=N takes another number",)
    why = f"partition {partition.name} has none" if partition else "no partition says how many its nodes have"
    return (f"the job takes no GPU: {why}; gpus=N asks for some",)


def _what_is_there(facts: Facts) -> str:
    if facts.gpu_problem:
        return facts.gpu_problem
    if not facts.gpus:
        return "no GPU"
    return ", ".join(f"GPU {gpu.index} {gpu.name}" for gpu in facts.gpus)
