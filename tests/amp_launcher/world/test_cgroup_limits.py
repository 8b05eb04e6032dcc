"""What of a machine a process may use, from files as the two interfaces of control groups have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amp_launcher.world import cgroup_limits

NO_LIMIT = 9223372036854771712  # as version 1 writes it


def lay(root: Path, groups: str, **files: str) -> Path:
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "800000 100000\n"}, 8),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "25600000 100000\n"}, 64),
        # Slurm limits the job, and steps are below it.
        ("0::/slurm/job_7/step_0\n", {"sys/fs/cgroup/slurm/job_7/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "3 1\n", "sys/fs/cgroup/a/b/cpu.max": "5 1\n"}, 3),
        # A container of version 1 is told the host's path, and sees its own group as the root.
        (
            "4:memory:/docker/f0\n1:cpu,cpuacct:/docker/f0\n0::/docker/f0\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            "1:cpu:/\n",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"},
            64,
        ),
    ],
)
def test_a_quota_leaves_so_many_cpus(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    assert cgroup_limits.cpus(lay(tmp_path, groups, **files)) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a\n", {"sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 1048576),
        ("4:memory:/gone\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "2097152\n"}, 2097152),
    ],
)
def test_the_lowest_limit_on_memory_counts(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    assert cgroup_limits.memory(lay(tmp_path, groups, **files)) == expected


def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unlimited = {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT}\n"}
    assert cgroup_limits.memory(lay(tmp_path, "4:memory:/\n", **unlimited)) == total
    assert cgroup_limits.memory(tmp_path / "no Linux") == total


def test_a_framework_is_told_threads_only_where_a_quota_leaves_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cgroup_limits, "cpus", lambda: 64)
    assert cgroup_limits.threads("OMP_NUM_THREADS") is None
    monkeypatch.setattr(cgroup_limits, "cpus", lambda: 8)
    assert cgroup_limits.threads("OMP_NUM_THREADS") == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert cgroup_limits.threads("OMP_NUM_THREADS") is None
