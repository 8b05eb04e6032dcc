"""The meaning of a host's state, for hosts that are described."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.doctor import examination
from launcher.doctor.rules import of_host, of_slurm
from launcher.plan.requirements import build_problem
from launcher.probe import health
from launcher.probe.health import Host
from launcher.runs.decode import decode
from launcher.runs.schema import ResultRecord
from tests.launcher.contained.test_text import RUNTIMES, with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, spec_of
from tests.launcher.slurm.test_text import CLUSTER, LOGIN

HEALTHY = Host(
    time=1000.0, memory_mib=64_000, bash=(5, 2), free_mib=500_000, tmp_free_mib=50_000, shm_mib=32_000, no_proxy=()
)
DOCKER, APPTAINER = ("container=docker", "image=x"), ("container=apptainer", "image=x")


def findings(*words, facts=LAPTOP, remote=False, **host):
    """Level, message and remedy of what is not ok, by what it is about."""
    seen = of_host(dataclasses.replace(HEALTHY, **host), facts, spec_of(*words), now=1000.0, remote=remote)
    return {
        finding.about: (finding.level, finding.message, finding.remedy) for finding in seen if finding.level != "ok"
    }


def laptop(**facts):
    return dataclasses.replace(LAPTOP, **facts)


def case(finding, message, *words, facts=LAPTOP, **host):
    """A host by what differs from a healthy laptop, the level and subject of its finding, and a part of the message."""
    return pytest.param(*finding.split(), message, words, facts, host, id=f"{finding}: {message}")


@pytest.mark.parametrize(
    ("level", "about", "message", "words", "facts", "host"),
    [
        case("problem bash", "4.1 is there, and run.sh needs bash 4.2", bash=(4, 1)),
        case("problem tools", "flock of util-linux are not there", facts=TWO_A100, lacking=("flock",)),
        case("advice gpu", "mismatch", facts=laptop(gpu_problem="Driver/library mismatch")),
        case("advice gpu", "2 NVIDIA cards are on the bus, and there is no nvidia-smi", nvidia_cards=2),
        case("problem run_root", "100 MiB free", free_mib=100),
        case("advice run_root", "4.9 GiB free", free_mib=5000),
        case("advice tmp", "/tmp is mounted noexec", tmp_noexec=True),
        case("advice shm", "/dev/shm has 64.0 MiB", shm_mib=64),
        case("advice memlock", "limited to 64 KiB", infiniband=True, memlock_kib=64),
        case("advice proxy", "http_proxy is set and no_proxy leaves localhost", proxies=("http_proxy",)),
        case("advice login", "its CUDA_HOME don't reach those who log in", lost_variables=("CUDA_HOME",)),
        case(
            "problem container", "users is 0", *APPTAINER, facts=with_containers(LAPTOP), user_namespaces="users is 0"
        ),
    ],
)
def test_a_host_with_a_fault_has_a_finding(level, about, message, words, facts, host):
    finding = findings(*words, facts=facts, **host)[about]
    assert finding[0] == level and message in finding[1]


@pytest.mark.parametrize(
    ("words", "facts", "host"),
    [
        ((), LAPTOP, {}),
        ((), TWO_A100, {}),
        (("cluster=ssh", "cluster.host=box"), LAPTOP, {"remote": True}),
        ((), LAPTOP, {"lacking": ("flock",)}),
        ((), LAPTOP, {"memlock_kib": 64}),
        ((), LAPTOP, {"proxies": ("http_proxy",), "no_proxy": ("localhost",)}),
        ((), LAPTOP, {"time": 1300.0}),
        ((), laptop(ends_at_logout=True), {}),
        (APPTAINER, with_containers(LAPTOP), {"user_namespaces": "users is 0", "setuid_apptainer": True}),
        (DOCKER, with_containers(LAPTOP, image_present=False, image_pull="x@sha256:1"), {}),
    ],
)
def test_a_host_without_a_fault_has_nothing_to_mend(words, facts, host):
    assert findings(*words, facts=facts, **host) == {}


@pytest.mark.parametrize(
    ("version", "driver", "message"),
    [
        ("2.13.0+cpu", "560.35.03", "torch 2.13.0+cpu is a build without CUDA, and there are GPUs"),
        (
            "2.13.0+cu130",
            "560.35.03",
            "torch 2.13.0+cu130 is for CUDA 13.0, which needs driver 580.65, and this host has 560.35.03",
        ),
        ("2.13.0+cu130", "580.82.07", ""),
        ("2.6.0+cu126", "535.104.05", ""),
        ("2.6.0+cu126", "", ""),
        ("2.6.0", "560.35.03", ""),
    ],
)
def test_a_build_that_cannot_use_the_gpus_is_a_problem(version, driver, message):
    cards = tuple(dataclasses.replace(gpu, driver=driver) for gpu in TWO_A100.gpus)
    assert build_problem("torch", laptop(packages={"torch": version}), cards)[0] == message
    assert build_problem("torch", laptop(packages={"torch": version}), ()) == ("", "")


@pytest.mark.parametrize(
    ("changes", "memory"), [({"memory_mib": 0}, "memory unknown"), ({"partitioned": True}, "cut into MIG instances")]
)
def test_a_gpu_of_unknown_memory_is_described_without_it(changes, memory):
    facts = laptop(gpus=(dataclasses.replace(TWO_A100.gpus[0], **changes),))
    messages = [finding.message for finding in of_host(HEALTHY, facts, spec_of(), now=1000.0, remote=False)]
    assert f"1x A100 ({memory}), driver 560.35.03" in messages


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        ({"holder": "held by mei (run x)"}, "GPU 1 is not free: held by mei (run x)", "gpus=N takes free ones"),
        ({"fault": "a memory repair failed"}, "GPU 1: a memory repair failed", "reset it when nobody uses it"),
    ],
)
def test_a_gpu_in_use_or_with_a_fault_is_named(change, message, remedy):
    facts = laptop(gpus=(TWO_A100.gpus[0], dataclasses.replace(TWO_A100.gpus[1], **change)))
    finding = findings(facts=facts)["gpu"]
    assert finding[:2] == ("advice", message)
    assert finding[2].startswith(remedy)


@pytest.mark.parametrize(
    ("kind", "changes", "messages"),
    [
        ("docker", {}, ["docker 28.0"]),
        ("singularity", {"product": "singularity"}, ["singularity 1.4"]),
        ("docker", {"problem": "its engine does not answer"}, []),
    ],
)
def test_a_container_runtime_that_works_is_named_with_its_version(kind, changes, messages):
    runtimes = {name: dataclasses.replace(runtime, **changes) for name, runtime in RUNTIMES.items()}
    spec, facts = spec_of(f"container={kind}", "image=x"), with_containers(LAPTOP, runtimes=runtimes)
    seen = of_host(HEALTHY, facts, spec, now=1000.0, remote=False)
    assert [finding.message for finding in seen if finding.about == "container"] == messages


def test_of_a_failed_jobs_log_the_lines_before_the_table_of_ranks_are_shown():
    assert examination._words(["no module", "", "rank  host  device", "0     box   cpu"]) == ["no module"]
    assert examination._words(["rank  host  device", "0     box   cpu"]) == ["rank  host  device", "0     box   cpu"]


def test_a_clock_difference_is_reported_with_its_direction():
    assert findings(remote=True, time=1300.0)["clock"][1] == "its clock is 5m00s ahead of this one"
    assert findings(remote=True, time=700.0)["clock"][1] == "its clock is 5m00s behind this one"


@pytest.mark.parametrize(
    ("partition", "cluster", "findings"),
    [
        (
            "short",
            {},
            {
                "slurm": ("ok", "testbed, Slurm 22.05.8, 4 partitions"),
                "partition": ("ok", "short: 2 nodes of 8 CPUs and 4 GPUs, 5m00s"),
                "accounting": ("ok", "on: how jobs ended"),
            },
        ),
        ("short,cpu", {}, {"partition": ("ok", "short,cpu: Slurm picks one of them")}),
        ("cpu", {}, {"partition": ("ok", "cpu: 2 nodes of 8 CPUs and no GPUs (GRES)")}),
        (None, {"accounting": False}, {"accounting": ("advice", "off, or no sacct here")}),
        (
            None,
            {"partitions": (dataclasses.replace(CLUSTER.partitions[0], gpu_types=("a100", "")),)},
            {"partition": ("ok", f"{CLUSTER.partitions[0].name}: 2 nodes of 8 CPUs and 4 GPUs (a100)")},
        ),
    ],
)
def test_a_slurm_cluster_is_described_with_the_partition_requested(partition, cluster, findings):
    facts = dataclasses.replace(LOGIN, slurm=dataclasses.replace(CLUSTER, **cluster))
    words = ["cluster=slurm", *([f"cluster.partition={partition}"] if partition else [])]
    seen = {finding.about: finding for finding in of_slurm(facts, spec_of(*words))}
    for about, (level, message) in findings.items():
        assert seen[about].level == level and seen[about].message.startswith(message)


@pytest.mark.parametrize(
    ("throughput", "begins"),
    [({"mean": 1234.5, "unit": "tokens/s"}, "1234 tokens/s, 512 MiB at most"), ({}, "512 MiB at most")],
)
def test_the_figures_of_the_job_have_their_unit_and_no_rate_where_none_was_measured(throughput, begins):
    result = decode(ResultRecord, {"throughput": throughput, "peak_memory_bytes": 512 << 20})[0]
    assert examination._figures(result).startswith(begins)


def test_this_machine_can_be_examined(tmp_path):
    host = health.read(str(tmp_path / "not" / "there"))
    assert host.bash >= (4, 2) and host.lacking == ()
    assert host.memory_mib > 100 and host.free_mib > 0
