"""A plan in a line."""

from __future__ import annotations

import pytest

from launcher.plan.plan_summary import resources
from launcher.plan.resolve import resolve
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.slurm.test_text import plan_of


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("gpus=0", "1 node, no GPU; the cluster decides cpus, mem, time, partition"),
        (
            "gpus=2 nodes=2 cluster.cpus=8 cluster.mem=64G cluster.time=4:00:00 cluster.partition=gpu "
            "cluster.account=lab",
            "2 nodes, 2 GPUs per node, 8 CPUs per node, 64G of memory per node, time limit 4:00:00, partition gpu, "
            "account lab",
        ),
        (
            "gpus=0 cluster.cpus=1 cluster.mem=1G cluster.time=5 cluster.partition=gpu cluster.exclude=n[3-5] "
            "cluster.nodelist=n1",
            "1 node, no GPU, 1 CPU per node, 1G of memory per node, time limit 5 minutes, partition gpu, nodelist n1, "
            "exclude n[3-5]",
        ),
        (
            "gpus=1 cluster.time=5",
            "1 node, 1 GPU per node, 2 CPUs per node, time limit 5 minutes; the cluster decides mem, partition",
        ),
        ("gpus=0 cluster.mem=64", "1 node, no GPU, 64M of memory per node; the cluster decides cpus, time, partition"),
    ],
)
def test_what_a_job_asks_of_slurm_and_what_it_leaves_open(words: str, text: str) -> None:
    assert resources(plan_of("amp=o0", *words.split())) == text


def test_a_run_on_this_machine_asks_nobody() -> None:
    assert resources(resolve(spec_of("amp=o2"), LAPTOP)) == ""
