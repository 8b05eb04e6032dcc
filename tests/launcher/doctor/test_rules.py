"""What a host's state means, said for hosts that are described."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher.doctor.rules import of_host, of_slurm
from launcher.probe import health
from launcher.probe.facts import Facts
from launcher.probe.health import Host
from tests.launcher.contained.test_text import RUNTIMES, with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of
from tests.launcher.slurm.test_text import CLUSTER, LOGIN

HEALTHY = Host(
    time=1000.0, memory_mib=64_000, bash=(5, 2), free_mib=500_000, tmp_free_mib=50_000, shm_mib=32_000, no_proxy=()
)


def found(*words: str, facts: Facts = LAPTOP, remote: bool = False, **changes: Any) -> dict[str, tuple[str, str, str]]:
    """Findings that are not ok, by what they are about."""
    host = dataclasses.replace(HEALTHY, **changes)
    every = of_host(host, facts, spec_of(*words), now=1000.0, remote=remote)
    return {each.about: (each.level, each.message, each.remedy) for each in every if each.level != "ok"}


def test_a_healthy_host_has_nothing_to_mend() -> None:
    assert found() == {}
    assert found(facts=TWO_A100) == {}
    assert found("cluster=ssh", "cluster.host=box", remote=True) == {}


@pytest.mark.parametrize(
    ("words", "facts", "changes", "about", "level", "says"),
    [
        ((), LAPTOP, {"bash": (4, 1)}, "bash", "problem", "4.1 is there, and run.sh needs bash 4.2"),
        ((), LAPTOP, {"lacking": ("flock",)}, None, "", ""),
        ((), TWO_A100, {"lacking": ("flock",)}, "tools", "problem", "flock of util-linux are not there"),
        ((), dataclasses.replace(LAPTOP, python_version="3.9.2"), {}, "python", "problem", "trainers need 3.10"),
        ((), dataclasses.replace(LAPTOP, packages={}), {}, "python", "problem", "and not torch"),
        ((), dataclasses.replace(LAPTOP, gpu_problem="Driver/library mismatch"), {}, "gpu", "advice", "mismatch"),
        (("gpus=1",), dataclasses.replace(LAPTOP, gpu_problem="x"), {}, "gpu", "problem", "x"),
        ((), LAPTOP, {"nvidia_cards": 2}, "gpu", "advice", "2 NVIDIA cards are on the bus, and there is no nvidia-smi"),
        (("gpus=1",), LAPTOP, {}, "gpu", "problem", "there is no NVIDIA GPU"),
        (
            (),
            dataclasses.replace(LAPTOP, run_root_problem="/x is not writable"),
            {},
            "run_root",
            "problem",
            "/x is not",
        ),
        ((), LAPTOP, {"free_mib": 100}, "run_root", "problem", "100 MiB free"),
        ((), LAPTOP, {"free_mib": 5000}, "run_root", "advice", "4.9 GiB free"),
        ((), LAPTOP, {"tmp_noexec": True}, "tmp", "advice", "/tmp is mounted noexec"),
        ((), LAPTOP, {"shm_mib": 64}, "shm", "advice", "/dev/shm has 64.0 MiB"),
        ((), LAPTOP, {"infiniband": True, "memlock_kib": 64}, "memlock", "advice", "limited to 64 KiB"),
        ((), LAPTOP, {"memlock_kib": 64}, None, "", ""),
        (
            (),
            LAPTOP,
            {"proxies": ("http_proxy",)},
            "proxy",
            "advice",
            "http_proxy is set and no_proxy leaves localhost",
        ),
        ((), LAPTOP, {"proxies": ("http_proxy",), "no_proxy": ("localhost",)}, None, "", ""),
        ((), dataclasses.replace(LAPTOP, ends_at_logout=True), {}, None, "", ""),
        (
            (),
            LAPTOP,
            {"lost_variables": ("CUDA_HOME",)},
            "login",
            "advice",
            "its CUDA_HOME don't reach those who log in",
        ),
        (
            ("container=apptainer", "image=x"),
            with_containers(LAPTOP),
            {"user_namespaces": "/proc/sys/user/max_user_namespaces is 0"},
            "container",
            "problem",
            "max_user_namespaces is 0",
        ),
        (
            ("container=apptainer", "image=x"),
            with_containers(LAPTOP),
            {"user_namespaces": "/proc/x is 0", "setuid_apptainer": True},
            None,
            "",
            "",
        ),
        (("container=docker",), with_containers(LAPTOP), {}, "image", "problem", "none is named"),
        (
            ("container=docker", "image=x"),
            with_containers(LAPTOP, image="x", image_present=False),
            {},
            "image",
            "problem",
            "image=x is not on this host: docker has no x; `python -m launcher image pull x "
            "container=docker` fetches it",
        ),
        (
            ("container=apptainer", "image=/nowhere/x.sif"),
            with_containers(LAPTOP, image="/nowhere/x.sif", image_present=False),
            {},
            "image",
            "problem",
            "image=/nowhere/x.sif is not on this host; there is no such file or folder",
        ),
        (
            ("container=docker", "image=x"),
            with_containers(LAPTOP, image_present=False, image_pull="x@sha256:1"),
            {},
            None,
            "",
            "",
        ),
        (
            ("container=docker", "image=x"),
            with_containers(LAPTOP, image_architecture="arm64"),
            {},
            "image",
            "problem",
            "image=x is made for arm64 and this host is amd64",
        ),
        (
            ("container=docker", "image=x"),
            with_containers(LAPTOP, runtimes={}),
            {},
            "container",
            "problem",
            "not there",
        ),
        (
            ("container=podman", "image=x"),
            with_containers(
                TWO_A100, runtimes={"podman": dataclasses.replace(RUNTIMES["podman"], gpu_problem="no CDI")}
            ),
            {},
            "container",
            "problem",
            "can't give GPUs to containers: no CDI",
        ),
    ],
)
def test_what_is_found(
    words: tuple[str, ...], facts: Facts, changes: dict[str, Any], about: str | None, level: str, says: str
) -> None:
    every = found(*words, facts=facts, **changes)
    if about is None:
        assert every == {}
        return
    assert every[about][0] == level
    assert says in every[about][1]


@pytest.mark.parametrize(
    ("version", "driver", "says"),
    [
        ("2.13.0+cpu", "560.35.03", "torch 2.13.0+cpu is a build without CUDA, and there are GPUs"),
        (
            "2.13.0+cu130",
            "560.35.03",
            "torch 2.13.0+cu130 is for CUDA 13, which needs driver 580.65, and this host has 560.35.03",
        ),
        ("2.13.0+cu130", "580.82.07", ""),
        ("2.6.0+cu126", "535.104.05", ""),
        ("2.6.0+cu126", "", ""),
        ("2.6.0", "560.35.03", ""),
    ],
)
def test_a_build_that_cannot_use_the_gpus_is_a_problem(version: str, driver: str, says: str) -> None:
    cards = tuple(dataclasses.replace(gpu, driver=driver) for gpu in TWO_A100.gpus)
    every = found(facts=dataclasses.replace(TWO_A100, gpus=cards, packages={"torch": version}))
    assert every.get("cuda", ("", "", ""))[1] == says
    assert found(facts=dataclasses.replace(LAPTOP, packages={"torch": version})) == {}
    assert "cuda" not in found("device=cpu", facts=dataclasses.replace(TWO_A100, packages={"torch": version}))


@pytest.mark.parametrize(
    ("changes", "says"), [({"memory_mib": 0}, "memory unknown"), ({"partitioned": True}, "cut into MIG instances")]
)
def test_a_gpu_without_a_known_memory_is_not_said_to_have_none(changes: dict[str, Any], says: str) -> None:
    facts = dataclasses.replace(LAPTOP, gpus=(dataclasses.replace(TWO_A100.gpus[0], **changes),))
    (said,) = [
        each.message for each in of_host(HEALTHY, facts, spec_of(), now=1000.0, remote=False) if each.about == "gpu"
    ]
    assert said == f"1x A100 ({says}), driver 560.35.03"


def test_a_gpu_in_use_is_named() -> None:
    held = dataclasses.replace(TWO_A100.gpus[1], holder="held by mei (run x)")
    facts = dataclasses.replace(TWO_A100, gpus=(TWO_A100.gpus[0], held))
    assert found(facts=facts)["gpu"] == ("advice", "GPU 1 is not free: held by mei (run x)", "gpus=N takes free ones")


def test_killuserprocesses_is_a_problem_over_ssh_only() -> None:
    """By the same fact as a plan's note: a user who may linger is left alone by both."""
    facts = dataclasses.replace(LAPTOP, ends_at_logout=True)
    level, said, mend = found("cluster=ssh", "cluster.host=box", facts=facts, remote=True)["logout"]
    assert (level, "KillUserProcesses=yes" in said, "enable-linger mei" in mend) == ("problem", True, True)


def test_a_clock_difference_is_reported_with_its_direction() -> None:
    assert found(remote=True, time=1300.0)["clock"][1] == "its clock is 5m00s ahead of this one"
    assert found(remote=False, time=1300.0) == {}


def slurm(*words: str, **changes: Any) -> dict[str, tuple[str, str]]:
    facts = dataclasses.replace(LOGIN, slurm=dataclasses.replace(CLUSTER, **changes))
    return {each.about: (each.level, each.message) for each in of_slurm(facts, spec_of("cluster=slurm", *words))}


def test_a_slurm_cluster_is_described_with_the_partition_asked_for() -> None:
    seen = slurm("cluster.partition=short")
    assert seen["slurm"] == ("ok", "testbed, Slurm 22.05.8, 4 partitions")
    assert seen["partition"] == ("ok", "short: 2 nodes of 8 CPUs and 4 GPUs, 5m00s")
    assert seen["accounting"][0] == "ok"


def test_of_several_partitions_slurm_picks_one() -> None:
    assert slurm("cluster.partition=short,cpu")["partition"] == ("ok", "short,cpu: Slurm picks one of them")


def test_gpu_types_are_shown_by_the_names_of_the_site() -> None:
    named = dataclasses.replace(CLUSTER.partitions[0], gpu_types=("a100", ""))
    assert "4 GPUs (a100)" in slurm(partitions=(named,))["partition"][1]


def test_a_closed_partition_is_a_problem_and_missing_accounting_advice() -> None:
    assert slurm("cluster.partition=closed")["partition"] == ("problem", "closed is not up")
    assert slurm(accounting=False)["accounting"][0] == "advice"
    assert slurm("cluster.partition=cpu")["partition"][1].startswith("cpu: 2 nodes of 8 CPUs and no GPUs (GRES)")


def test_this_machine_can_be_looked_at(tmp_path: Any) -> None:
    seen = health.look(str(tmp_path / "not" / "there"))
    assert seen.bash >= (4, 2)
    assert seen.lacking == ()
    assert seen.memory_mib > 100
    assert seen.free_mib > 0
