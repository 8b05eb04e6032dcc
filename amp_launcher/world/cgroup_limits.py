"""CPUs and memory that this process may use: fewer than the machine has, in a container or under Slurm.

Control groups enforce both, but frameworks count the machine's: with a quota of 8 of 128 CPUs, 128 threads are
throttled most of the time. A limit holds for a group and all below it, so the lowest on the path to the root counts.
Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max), cgroup-v1/memory.rst, and
scheduler/sched-bwc.rst (cpu.cfs_quota_us).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def cpus(root: Path = ROOT) -> int:
    """CPUs that may be busy at a time: this process's affinity, or a quota of them, rounded up.

    `root` is the folder that holds /proc and /sys.
    """
    quotas = [quota for group in _groups(root, "cpu") if (quota := _quota(group)) is not None]
    return max(1, min([free_cpus(), *(math.ceil(quota) for quota in quotas)]))


def memory(root: Path = ROOT) -> int:
    """Bytes: the machine's, or the lowest limit on this process's group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = (_whole(group / name) for group in _groups(root, "memory") for name in names)
    return min([total, *(limit for limit in limits if limit is not None)])


def threads(*variables: str) -> int | None:
    """Threads to set in a framework; None where its default, one for each CPU of this process, is right, or where one
    of these environment variables sets them."""
    allowed = cpus()
    return allowed if not os.environ.keys() & set(variables) and allowed < free_cpus() else None


def free_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of those above it, of either version of the interface.

    A container sees its own group as the root, and may read a path that it has no files of.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup" / controllers
        group = mounted / path.lstrip("/")
        yield group
        while group != mounted and mounted in group.parents:
            group = group.parent
            yield group


def _quota(group: Path) -> float | None:
    """CPUs, None without a limit."""
    try:
        most, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        limit, time = _whole(group / "cpu.cfs_quota_us"), _whole(group / "cpu.cfs_period_us")
        return limit / time if limit and time else None
    return int(most) / int(period) if most.isdigit() else None


def _whole(path: Path) -> int | None:
    """The number in a file of the kernel's; None for `max`, -1, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
