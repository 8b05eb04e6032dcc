"""What a plan says of `amp.gemm`, and what it refuses by what the host has."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.plan_summary import summary
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, gpu, spec_of

WITH_TORCHAO = {"torch": "2.13.0", "torchao": "0.18.0"}
IN_DOCKER = ("container=docker", "image=cpu")


def with_torchao(version: str, facts: Facts = LAPTOP) -> Facts:
    return dataclasses.replace(facts, packages={**WITH_TORCHAO, "torchao": version})


CPU = with_torchao("0.18.0")
H100 = dataclasses.replace(CPU, gpus=tuple(gpu(index, "9.0", "NVIDIA H100 80GB HBM3") for index in range(2)))
B200 = dataclasses.replace(CPU, gpus=(gpu(0, "10.0", "NVIDIA B200"),))
RTX = dataclasses.replace(CPU, gpus=(gpu(0, "12.0", "NVIDIA GeForce RTX 5090"),))


def plan_of(*words: str, facts: Facts = CPU) -> Plan:
    return resolve(spec_of("recipe=gpt", *words), facts)


def test_the_plan_names_the_format_its_library_and_what_is_left_out():
    plan = plan_of("amp=fp8")
    assert "at o2 (half_model_fp32_masters), bfloat16, fp8-tensorwise by torchao, batch 8, cpu" in summary(plan)
    assert plan.advice[:2] == (
        "amp.gemm=fp8-tensorwise: 16 linear layers converted; left in half precision: head (the output layer)",
        "amp.gemm=fp8-tensorwise on a CPU shows that it is applied; a step takes about five times one in bfloat16",
    )
    assert not [line for line in plan_of("amp=fp8", facts=H100).advice if "on a CPU" in line]
    assert (plan.name, plan.words[0]) == ("gpt-fp8", "amp=fp8")


def test_a_prototype_is_called_one_and_emulation_is_said():
    plan = plan_of("amp=mxfp8")
    assert "at o2 (half_model_fp32_masters), bfloat16, mxfp8 by a prototype of torchao, batch 8, cpu" in summary(plan)
    assert plan.advice[1] == (
        "amp.gemm=mxfp8 on a CPU is emulated: operands are rounded to it and multiplied in bfloat16, which is no "
        "proof, so that only require_proof=false lets a run continue"
    )
    plan = plan_of("amp=nvfp4", facts=B200)
    assert "nvfp4 by a prototype of torchao" in summary(plan)
    assert plan.advice[0].startswith("amp.gemm=nvfp4: 16 linear layers converted; left in half precision: head")
    (line,) = unchecked("amp=mxfp8", *IN_DOCKER, facts=with_containers(LAPTOP, image="cpu"))
    assert line.startswith("not checked: torchao 0.18 (for a prototype in it) in the image")


@pytest.mark.parametrize(
    ("words", "facts", "says"),
    [
        (("amp=mxfp8",), H100, "amp.gemm=mxfp8 needs compute capability 10.0, and this GPU has 9.0; say amp=fp8"),
        (("amp=nvfp4",), CPU, "amp.gemm=nvfp4 has no kernels for a CPU; say amp=fp8, which has"),
        (("amp=nvfp4",), RTX, "no kernels for compute capability 11.0 and above, and this GPU has 12.0; say amp=fp8"),
        (
            ("amp=mxfp8",),
            with_torchao("0.19.1"),
            r"torchao 0.18 \(for a prototype in it\), and there is 0.19.1 for .*==0.18",
        ),
        (("amp=nvfp4", "train.width=320"), B200, r"left out \(blocks.0.attention.qkv: 320 -> 960, not in multiples of"),
        (
            ("amp=nvfp4", "batch=3", "train.context=64"),
            B200,
            "be a multiple of 128, and recipe=gpt has 192 on a device",
        ),
    ],
)
def test_a_prototype_that_a_host_or_a_network_cannot_have_is_refused(words: tuple[str, ...], facts: Facts, says: str):
    with pytest.raises(UsageError, match=says):
        plan_of(*words, facts=facts)


@pytest.mark.parametrize(
    ("words", "facts", "says"),
    [
        ((), LAPTOP, r"torchao 0.18 or newer, and it is not installed for /opt/venv/bin/python on box: pip"),
        ((), with_torchao("0.9.0+cu128"), r"newer, and there is 0.9.0\+cu128 for .*pip install 'amp-launcher\[fp8\]'"),
        ((), with_torchao("0.18.0", TWO_A100), r"needs compute capability 8.9, and this GPU has 8.0; say amp=o1 or"),
        (("batch=2", "train.context=8", "gpus=2"), H100, "be a multiple of 16, and recipe=gpt has 8 on a device"),
    ],
)
def test_a_host_that_cannot_apply_it_is_refused_with_the_remedy(words: tuple[str, ...], facts: Facts, says: str):
    with pytest.raises(UsageError, match=says):
        plan_of("amp=fp8", *words, facts=facts)


def unchecked(*words: str, facts: Facts) -> list[str]:
    return [line for line in plan_of(*words, facts=facts).advice if line.startswith("not checked: ")]


NEEDED = "not checked: torchao 0.18 or newer"


@pytest.mark.parametrize(
    ("words", "facts", "lines"),
    [
        (("cluster.setup=[module load x]",), LAPTOP, [f"{NEEDED} with what cluster.setup loads"]),
        (("cluster.setup=[ulimit -c 0]",), CPU, []),
        (("gpus=2",), H100, []),
        (IN_DOCKER, with_containers(LAPTOP, image="cpu"), [f"{NEEDED} in the image"]),
    ],
)
def test_what_was_not_checked_is_named_and_not_refused(words: tuple[str, ...], facts: Facts, lines: list[str]):
    named = unchecked("amp=fp8", *words, facts=facts)
    assert [line.partition("; a run ends at once without it")[0] for line in named] == lines
    assert all("add RUN " in line for line in named if "in the image" in line)
