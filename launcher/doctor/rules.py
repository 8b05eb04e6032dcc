"""Rules from a host's state to findings, each with a remedy: what planning does not check itself. Pure. Every rule is
from a real host's failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from amp_launcher.typed import SettingsError
from launcher import units
from launcher.config.schema import SlurmCluster
from launcher.config.spec import JobSpec
from launcher.containers.runtime import ALIASES
from launcher.plan.slurm_check import find_partition
from launcher.probe.facts import Facts, Gpu
from launcher.probe.health import Host

Level = Literal["ok", "advice", "problem"]
MIB = 2**20
CLOCK_SECONDS = 60
"""Difference of clocks from which times of runs mislead."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: Level
    """`problem` prevents the requested job; `advice` may matter for others."""
    about: str
    message: str
    remedy: str = ""


ok, advice, problem = partial(Finding, "ok"), partial(Finding, "advice"), partial(Finding, "problem")


def of_host(host: Host, facts: Facts, spec: JobSpec, *, now: float, remote: bool) -> Iterator[Finding]:
    """What is found on the host that starts the job: the machine itself, or a cluster's login node. `now` is this
    machine's clock when the host's was read."""
    on_cluster = isinstance(spec.launch.cluster, SlurmCluster)
    yield ok("host", f"{facts.host}, {facts.system}, {facts.cpus} CPUs, {units.size(host.memory_mib * MIB)} memory")
    yield from _clock(host, now, remote)
    yield from _tools(host, facts, on_cluster)
    if spec.launch.container.kind == "none" and facts.python_version:
        frameworks = ", ".join(f"{name} {version}" for name, version in facts.packages.items())
        yield ok("python", f"{facts.python_version} ({facts.python}) with {frameworks or 'no framework'}")
    if not on_cluster:
        yield from _gpus(host, facts)
    yield from _disk(host, facts)
    yield from _container(host, facts, spec)
    if not on_cluster:
        yield from _limits(host)
    yield from _container_login(host)
    yield from _proxies(host)


def of_slurm(facts: Facts, spec: JobSpec) -> Iterator[Finding]:
    """What is found of a Slurm cluster."""
    slurm, cluster = facts.slurm, spec.launch.cluster
    if slurm is None or not isinstance(cluster, SlurmCluster):
        return
    yield ok("slurm", f"{slurm.cluster}, Slurm {slurm.version}, {len(slurm.partitions)} partitions")
    try:
        partition = find_partition(cluster, slurm)
    except SettingsError:
        return  # one that is not there, which planning refuses
    if partition is None and cluster.partition:
        yield ok("partition", f"{cluster.partition}: Slurm picks one of them")
    elif partition is None:
        yield advice(
            "partition",
            "no partition is named, and the cluster has no default one",
            f"say cluster.partition= one of {', '.join(known.name for known in slurm.partitions)}",
        )
    else:
        limit = units.duration(partition.max_minutes * 60) if partition.max_minutes else "no time limit"
        types = ", ".join(gpu_type for gpu_type in partition.gpu_types if gpu_type)
        gpus = f"{partition.gpus_per_node} GPUs" if partition.gpus_per_node else "no GPUs (GRES)"
        gpus += f" ({types})" if types else ""
        nodes = f"{partition.nodes} nodes of {partition.cpus_per_node} CPUs"
        yield ok("partition", f"{partition.name}: {nodes} and {gpus}, {limit}")
    if slurm.accounting:
        yield ok("accounting", "on: how jobs ended is asked of sacct")
    else:
        yield advice(
            "accounting",
            "off, or no sacct here: Slurm forgets ended jobs within minutes (MinJobAge)",
            "nothing has to be done: runs write down themselves how they ended, but not why Slurm killed them",
        )


def _clock(host: Host, now: float, remote: bool) -> Iterator[Finding]:
    off = host.time - now
    if remote and abs(off) > CLOCK_SECONDS:
        side = "ahead of" if off > 0 else "behind"
        yield advice("clock", f"its clock is {units.duration(abs(off))} {side} this one", "switch NTP on there")


def _tools(host: Host, facts: Facts, on_cluster: bool) -> Iterator[Finding]:
    if host.bash < (4, 2):
        version = ".".join(map(str, host.bash)) or "none"
        yield problem("bash", f"{version} is there, and run.sh needs bash 4.2 or newer", "put a newer bash on the PATH")
    needed = {"setsid"} | ({"flock"} if facts.gpus and not on_cluster else set())
    lacking = sorted(needed & set(host.lacking))
    if lacking:
        yield problem("tools", f"{' and '.join(lacking)} of util-linux are not there", "install util-linux")


def _gpus(host: Host, facts: Facts) -> Iterator[Finding]:
    if facts.gpu_problem:
        remedy = "reboot after a driver's upgrade, or install it again: `nvidia-smi` has to answer"
        yield advice("gpu", facts.gpu_problem, remedy)
    elif facts.gpus:
        first = facts.gpus[0]
        names = sorted({f"{gpu.name} ({_size_of(gpu)})" for gpu in facts.gpus})
        yield ok("gpu", f"{len(facts.gpus)}x {', '.join(names)}, driver {first.driver}")
        for gpu in facts.gpus:
            if gpu.holder:
                yield advice("gpu", f"GPU {gpu.index} is not free: {gpu.holder}", "gpus=N takes free ones")
            if gpu.fault:
                remedy = "reset it when nobody uses it (nvidia-smi --gpu-reset), and replace it if that comes back"
                yield advice("gpu", f"GPU {gpu.index}: {gpu.fault}", remedy)
    elif host.nvidia_cards:
        message = f"{host.nvidia_cards} NVIDIA cards are on the bus, and there is no nvidia-smi"
        yield advice("gpu", message, "install NVIDIA's driver; in a container, start it with its GPUs")
    else:
        yield ok("gpu", "none: jobs run on the CPU")


def _size_of(gpu: Gpu) -> str:
    if gpu.partitioned:
        return "cut into MIG instances"
    return units.size(gpu.memory_mib * MIB) if gpu.memory_mib else "memory unknown"


def _disk(host: Host, facts: Facts) -> Iterator[Finding]:
    kind = f", {facts.run_root_filesystem}" if facts.run_root_filesystem else ""
    message = f"{facts.run_root}: {units.size(host.free_mib * MIB)} free{kind}"
    if host.free_mib < 512:
        yield problem("run_root", message, "make room, or name another folder with run_root=")
    elif host.free_mib < 10 * 1024:
        yield advice("run_root", message, "checkpoints may need more: make room, or say checkpoint.keep=1")
    else:
        yield ok("run_root", message)
    if host.tmp_noexec:
        yield advice(
            "tmp",
            f"{host.tmp} is mounted noexec: what compile=true and profilers build there can't be loaded",
            "say env.TMPDIR= a folder on another disk",
        )
    if host.tmp_free_mib < 1024:
        message = f"{host.tmp} has {units.size(host.tmp_free_mib * MIB)} free"
        yield advice("tmp", message, "say env.TMPDIR= a folder on another disk; image pull needs several GiB there")


def _container(host: Host, facts: Facts, spec: JobSpec) -> Iterator[Finding]:
    kind, known = ALIASES.get(spec.launch.container.kind, spec.launch.container.kind), facts.containers
    if kind == "none" or known is None:
        return
    if (runtime := known.runtimes.get(kind)) and not runtime.problem:
        yield ok("container", f"{runtime.product or kind} {'.'.join(map(str, runtime.version))}".rstrip())
    if kind == "apptainer" and host.user_namespaces and not host.setuid_apptainer:
        yield problem(
            "container",
            f"Apptainer is not setuid here and users may make no user namespaces: {host.user_namespaces}",
            "ask for its setuid package, or for user namespaces",
        )
    if known.image_present and not known.image_pull:
        yield ok("image", f"{known.image}, CUDA {known.image_cuda or 'version unknown'}")


def _limits(host: Host) -> Iterator[Finding]:
    if host.shm_mib < 1024:
        message = f"/dev/shm has {units.size(host.shm_mib * MIB)}: data loaders and NCCL pass batches through it"
        yield advice("shm", message, "start the container with --shm-size or --ipc=host; or remount it larger")
    if host.infiniband and host.memlock_kib >= 0:
        yield advice(
            "memlock",
            f"there is InfiniBand and locked memory is limited to {host.memlock_kib} KiB, which stops RDMA",
            "set memlock unlimited in /etc/security/limits.conf, and for Docker by container.limits.memlock=-1",
        )


def _container_login(host: Host) -> Iterator[Finding]:
    if host.lost_variables:
        yield advice(
            "login",
            f"this is a container, and its {', '.join(host.lost_variables)} don't reach those who log in",
            "write the image's variables into its /etc/environment at the start, as `image render interactive` does",
        )


def _proxies(host: Host) -> Iterator[Finding]:
    if host.proxies and not {"localhost", "127.0.0.1", "*"} & set(host.no_proxy):
        yield advice(
            "proxy",
            f"{', '.join(host.proxies)} is set and no_proxy leaves localhost out: gRPC and TensorBoard go to the proxy",
            "add localhost,127.0.0.1 to no_proxy",
        )
