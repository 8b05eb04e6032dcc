"""What a job asks of a Slurm cluster, checked against what the cluster has. Pure."""

from __future__ import annotations

import dataclasses
import math

from amp_launcher.typed import SettingsError, nearest
from launcher.config import launch_checks, slurm_units
from launcher.config.schema import Cluster, Gpus, SlurmCluster
from launcher.config.slurm_flags import NAMED
from launcher.config.spec import JobSpec
from launcher.plan.model import Preemption
from launcher.probe import gpu_names
from launcher.probe.facts import Facts, Partition, SlurmFacts

_VARIABLES = {f"SBATCH_{flag.replace('-', '_').upper()}": key for flag, key in NAMED.items() if key != "time"}
_VARIABLES |= {"SBATCH_TIMELIMIT": "time", "SBATCH_MEM_PER_NODE": "mem"}


def check_request(spec: JobSpec, facts: Facts) -> None:
    """Refuse what a Slurm cluster can't give. Raises `SettingsError`."""
    cluster, slurm = spec.launch.cluster, facts.slurm
    if not isinstance(cluster, SlurmCluster):
        return
    assert slurm is not None, "the prober gives facts of Slurm for cluster=slurm"
    check_resources(cluster, spec.launch.nodes, spec.launch.gpus, slurm)
    _check_run_root(facts, slurm)


def advice(spec: JobSpec, facts: Facts) -> tuple[str, ...]:
    """Notes on variables of the shell from which sbatch takes options, none of which the launcher passes on, and on
    GPUs that the job sees beside those that it asked for."""
    cluster, slurm = spec.launch.cluster, facts.slurm
    if not isinstance(cluster, SlurmCluster) or slurm is None:
        return ()
    keys = {name: key for name, key in _VARIABLES.items() if getattr(cluster, key) is None}
    missed = [name for name in slurm.sbatch_variables if name in keys]
    notes = []
    if missed:
        instead = ", ".join(f"cluster.{keys[name]}=..." for name in missed)
        notes.append(
            f"{', '.join(missed)} of this shell {'has' if len(missed) == 1 else 'have'} no effect; say {instead}"
        )
    most = max((known.gpus_per_node for known in _partitions(cluster, slurm)), default=0)
    if "--exclusive" in cluster.flags and spec.launch.nodes == 1 and 0 < (spec.launch.gpus or 0) < most:
        notes.append(
            f"--exclusive gives the job all GPUs of its node: it sees up to {most}, not {spec.launch.gpus}, and Slurm "
            f"charges them; gpus={most} counts them too"
        )
    return tuple(notes)


CPUS_PER_GPU = 4
"""Where the share of a partition's GPUs isn't known: a process of Python that trains, and three that load its data."""


def with_cpus(spec: JobSpec, facts: Facts, gpus: int) -> tuple[JobSpec, tuple[str, ...]]:
    """The job with CPUs for its GPUs of a node, where it names none, and where their number is from. By itself Slurm
    gives a job one CPU."""
    cluster = spec.launch.cluster
    if not isinstance(cluster, SlurmCluster) or facts.slurm is None or not gpus or cluster.cpus is not None:
        return spec, ()
    partitions = _partitions(cluster, facts.slurm)
    shares = [known.cpus_per_gpu for known in partitions if known.cpus_per_gpu]
    share = min(shares, default=CPUS_PER_GPU)
    names = ",".join(known.name for known in partitions)
    origin = f"the share of a GPU in partition {names}" if shares else "no partition shows its share"
    launch = dataclasses.replace(spec.launch, cluster=dataclasses.replace(cluster, cpus=share * gpus))
    each = f"{share} CPU{'s' * (share > 1)} for each GPU ({origin})"
    return dataclasses.replace(spec, launch=launch), (f"{each}; cluster.cpus=N takes another number per node",)


def capability(cluster: SlurmCluster, facts: Facts, kind: str = "") -> tuple[int, int] | None:
    """The highest compute capability of the GPUs where a job would go, or of those of the type that it asks for; None
    where unknown."""
    partition = find_partition(cluster, facts.slurm) if facts.slurm else None
    types = (kind,) if kind else partition.gpu_types if partition else ()
    return gpu_names.capability(types)


def preemption(cluster: Cluster, facts: Facts) -> Preemption | None:
    """How a job may be ended for another one, by its partition, or its QOS, which is `normal` unless one is named. Of
    several partitions, by that with the shortest grace time."""
    slurm = facts.slurm
    if not isinstance(cluster, SlurmCluster) or slurm is None:
        return None
    partitions = [known.name for known in _partitions(cluster, slurm)]
    names = {"partition": partitions, "qos": [cluster.qos or "normal"]}
    found = [one for one in slurm.preemptible if one.name in names[one.by]]
    if not found:
        return None
    first = min(found, key=lambda one: one.grace)
    return Preemption(mode=first.mode, grace=first.grace, heard=first.grace > 0 and not slurm.preempts_by_signal)


def find_partition(cluster: SlurmCluster, slurm: SlurmFacts) -> Partition | None:
    """The partition that a job goes to; None where Slurm picks one of several, and where none is named and there is no
    default. Raises `SettingsError` for one that is not there."""
    found = _partitions(cluster, slurm)
    return found[0] if len(found) == 1 else None


def _partitions(cluster: SlurmCluster, slurm: SlurmFacts) -> list[Partition]:
    """Those that a job may go to: all that it names, else the default."""
    if cluster.partition is None:
        return [partition for partition in slurm.partitions if partition.default]
    known = {partition.name: partition for partition in slurm.partitions}
    for name in cluster.partition.split(","):
        if name not in known:
            choices = f"{', '.join(known)}{nearest(name, known)}"
            raise SettingsError(f"cluster.partition={name} is not one of {choices}")
    return [known[name] for name in cluster.partition.split(",")]


def check_resources(cluster: SlurmCluster, nodes: int, gpus: Gpus | None, slurm: SlurmFacts) -> None:
    """Refuse what the partition of a new job, or of a resumed one, can't give. `gpus` are those of a node. Raises
    `SettingsError`."""
    partition = find_partition(cluster, slurm)
    if partition is None:
        return
    launch_checks.check_limit(cluster, partition.max_minutes, f"partition {partition.name}")
    if not partition.up:
        raise SettingsError(f"partition {partition.name} is down; name another", "cluster.partition")
    if nodes > partition.nodes:
        raise SettingsError(f"nodes={nodes}: partition {partition.name} has {partition.nodes}")
    if gpus is not None and gpus.kind:
        _check_type(gpus, partition)
    memory = partition.memory_mib_per_node
    for key, asked, wanted, most, shown in (
        ("gpus", gpus, gpus, partition.gpus_per_node, f"{partition.gpus_per_node}"),
        ("cluster.cpus", cluster.cpus, cluster.cpus, partition.cpus_per_node, f"{partition.cpus_per_node}"),
        ("cluster.mem", cluster.mem, _mebibytes(cluster.mem), memory or math.inf, f"{memory // 1024}G"),
    ):
        if (wanted or 0) > most:
            raise SettingsError(f"{key}={asked}: no node of partition {partition.name} has more than {shown}")
    if cluster.time is not None:
        wanted = slurm_units.minutes(cluster.time)
        limit = partition.max_minutes
        if limit is not None and (wanted is None or wanted > limit):
            raise SettingsError(
                f"cluster.time={cluster.time} is over the {limit} minutes that partition {partition.name} allows",
            )


def _check_type(gpus: Gpus, partition: Partition) -> None:
    """Slurm itself tells only that no node fits."""
    most = partition.gpus_of_type.get(gpus.kind)
    if most is None:
        named = [name for name in partition.gpu_types if name]
        there = f"has GPUs of type {', '.join(named)}{nearest(gpus.kind, named)}" if named else "names no type of GPUs"
        raise SettingsError(f"gpus={gpus}: partition {partition.name} {there}")
    if gpus > most:
        raise SettingsError(
            f"gpus={gpus}: no node of partition {partition.name} has more than {most} of type {gpus.kind}"
        )


def _mebibytes(text: str | None) -> int:
    try:
        return slurm_units.mebibytes(text) if text is not None else 0
    except ValueError as error:
        raise SettingsError(f"cluster.mem={error}") from None


def _check_run_root(facts: Facts, slurm: SlurmFacts) -> None:
    """A folder that only this machine has would lose every run. Nodes that are this machine share all it has."""
    for odd, why in (("%", "Slurm expands % in paths"), ("\\", "Slurm takes \\ out of paths")):
        if odd in facts.run_root:
            raise SettingsError(f"run_root={facts.run_root}: {why}; name another folder")
    if slurm.nodes_are_here:
        return
    local = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/")
    if facts.run_root_filesystem in ("tmpfs", "ramfs") or f"{facts.run_root}/".startswith(local):
        where = f"{facts.host}'s own {facts.run_root_filesystem or 'disk'}"
        raise SettingsError(
            f"run_root={facts.run_root} is on {where}, which the nodes do not share; name a folder that they do",
        )
