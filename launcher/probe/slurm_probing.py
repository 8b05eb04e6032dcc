"""The facts of a Slurm cluster, collected once before planning."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Sequence

from launcher.config import slurm_units
from launcher.errors import Unavailable
from launcher.probe import slurm_preemption
from launcher.probe.facts import Partition, SlurmFacts
from launcher.probe.slurm_commands import adopt_login_path, begin, call, complaint, output

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_sizes: dict[str | None, int] = {}
"""MaxArraySize by SLURM_CONF: the planning of a sweep has just asked."""
_SETTING = re.compile(r"^(\w+)\s+=\s(.*)$", re.MULTILINE)


def probe() -> SlurmFacts:
    """The cluster of this machine. Raises `Unavailable` if there is none or it does not answer."""
    if shutil.which("sbatch") is None:
        adopt_login_path()
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise Unavailable(
            f"cluster=slurm, and there is no sbatch on {os.uname().nodename}; run this on the cluster's login node, or "
            "name that with cluster.login=me@login"
        )
    # At once with the other questions.
    nodes_asked = begin(["sinfo", "--noheader", "--exact", "--format=%P|%a|%l|%c|%G|%o|%D|%m"])
    try:
        settings = call(["scontrol", "show", "config"])
        if settings.returncode != 0:
            raise Unavailable(f"Slurm's controller does not answer: {complaint(settings)}")
        preemptible = slurm_preemption.probe(_values(settings.stdout))
    finally:
        nodes = output(nodes_asked)
    if nodes.returncode != 0:
        raise Unavailable(f"sinfo failed: {complaint(nodes)}")
    folder = os.path.dirname(sbatch)
    # In its usual place it changes nothing: what a site puts into /usr/local/bin comes before the system's own.
    environment = {"PATH": STANDARD_PATH if folder in STANDARD_PATH.split(":") else f"{folder}:{STANDARD_PATH}"}
    if "SLURM_CONF" in os.environ:
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    facts = read(settings.stdout, nodes.stdout.splitlines(), os.uname().nodename, environment)
    _sizes[os.environ.get("SLURM_CONF")] = facts.max_array_size
    return dataclasses.replace(
        facts,
        preemptible=preemptible,
        accounting=facts.accounting and shutil.which("sacct") is not None,
        sbatch_variables=tuple(sorted(name for name in os.environ if name.startswith("SBATCH_"))),
    )


def max_array_size() -> int:
    """The cluster's MaxArraySize, without a question where this process has asked before. Raises `Unavailable`."""
    return _sizes.get(os.environ.get("SLURM_CONF")) or probe().max_array_size


def nodes_away(partition: str | None) -> list[str]:
    """The nodes of a partition (None: of the default one) that take no jobs now, with their states, as
    `n[1-2] drained`."""
    argv = ["sinfo", "--noheader", "--states=down,drain,fail,maint", "--format=%P|%N %T"]
    rows = call([*argv, f"--partition={partition}"] if partition else argv).stdout.splitlines()
    named = (row.split("|", 1) for row in rows)
    return [nodes for name, nodes in named if nodes[0] != " " and (partition or name.endswith("*"))]


def read(settings: str, nodes: Sequence[str], hostname: str, environment: dict[str, str]) -> SlurmFacts:
    """Facts from the output of `scontrol show config` and `sinfo`; `hostname` is this machine's name."""
    values = _values(settings)
    here = (hostname, "localhost", "::1")
    rows: dict[str, list[list[str]]] = {}
    for line in nodes:
        fields = line.split("|")
        if len(fields) == 8:
            rows.setdefault(fields[0], []).append(fields)
    partitions = tuple(
        Partition(
            name=name.rstrip("*"),
            default=name.endswith("*"),
            up=of_name[0][1] == "up",
            max_minutes=slurm_units.minutes(of_name[0][2]),
            nodes=sum(int(row[6]) for row in of_name),
            gpus_per_node=max(slurm_units.gpus(row[4]) for row in of_name),
            gpu_types=tuple(dict.fromkeys(name for row in of_name for name in slurm_units.gpu_types(row[4]))),
            gpus_of_type={
                kind: max(slurm_units.gpus(row[4], kind) for row in of_name)
                for row in of_name
                for kind in slurm_units.gpu_types(row[4])
            },
            cpus_per_gpu=min(
                (_count(row[3]) // gpus for row in of_name if (gpus := slurm_units.gpus(row[4]))), default=0
            ),
            cpus_per_node=max(_count(row[3]) for row in of_name),
            memory_mib_per_node=max(_count(row[7]) for row in of_name),
        )
        for name, of_name in rows.items()
    )
    return SlurmFacts(
        version=values.get("SLURM_VERSION", ""),
        cluster=values.get("ClusterName", ""),
        partitions=partitions,
        max_array_size=int(values.get("MaxArraySize", "1001")),
        accounting="slurmdbd" in values.get("AccountingStorageType", ""),
        environment=environment,
        preempts_by_signal="send_user_signal" in values.get("PreemptParameters", ""),
        nodes_are_here=all(row[5] in here or row[5].startswith("127.") for of_name in rows.values() for row in of_name),
    )


def _values(settings: str) -> dict[str, str]:
    return {name: value.strip() for name, value in _SETTING.findall(settings)}


def _count(text: str) -> int:
    """The number at the start of a field, which is `64+` for nodes that differ."""
    digits = re.match(r"\d*", text)
    return int(digits[0]) if digits and digits[0] else 0
