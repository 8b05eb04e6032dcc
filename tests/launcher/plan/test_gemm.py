"""What a plan says of `amp.gemm`, and what it refuses by what the host has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher.errors import UsageError
from launcher.plan.model import Plan
from launcher.plan.plan_summary import summary
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, TWO_A100, gpu, spec_of

WITH_TORCHAO = {"torch": "2.13.0", "torchao": "0.18.0"}
CPU = dataclasses.replace(LAPTOP, packages=WITH_TORCHAO)
H100 = dataclasses.replace(CPU, gpus=tuple(gpu(index, "9.0", "NVIDIA H100 80GB HBM3") for index in range(2)))


def plan_of(*words: str, facts: Facts = CPU) -> Plan:
    return resolve(spec_of("recipe=gpt", *words), facts)


def test_the_plan_names_the_format_its_library_and_what_is_left_out():
    plan = plan_of("amp=fp8")
    assert "at o2 (half_model_fp32_masters), bfloat16, fp8-tensorwise by torchao, batch 8, cpu" in summary(plan)
    assert plan.advice[:2] == (
        "amp.gemm=fp8-tensorwise: 16 linear layers converted; left in half precision: head (the output layer)",
        "amp.gemm=fp8-tensorwise on a CPU shows that it is applied; a step takes about five times one in bfloat16",
    )
    assert (plan.name, plan.words[0]) == ("gpt-fp8", "amp=fp8")


def test_on_a_gpu_it_says_nothing_of_slowness():
    assert not [line for line in plan_of("amp=fp8", facts=H100).advice if "on a CPU" in line]


@pytest.mark.parametrize(
    ("words", "facts", "says"),
    [
        (("amp=fp8",), LAPTOP, r"torchao 0.18 or newer, and it is not installed for /opt/venv/bin/python on box: pip"),
        (
            ("amp=fp8",),
            dataclasses.replace(CPU, packages={**WITH_TORCHAO, "torchao": "0.9.0+cu128"}),
            r"torchao 0.18 or newer, and there is 0.9.0\+cu128 for .*pip install 'amp-launcher\[fp8\]'",
        ),
        (
            ("amp=fp8",),
            dataclasses.replace(TWO_A100, packages=WITH_TORCHAO),
            r"needs compute capability 8.9, and this GPU has 8.0; say amp=o1 or amp=o2",
        ),
        (("amp=fp8", "batch=2", "train.context=8"), H100, "must be a multiple of 16, and recipe=gpt has 8 on a device"),
    ],
)
def test_what_this_host_can_not_do_is_refused(words: tuple[str, ...], facts: Facts, says: str):
    with pytest.raises(UsageError, match=says):
        plan_of(*words, "gpus=2" if facts is H100 else "seed=0", facts=facts)


def test_what_setup_may_load_is_said_to_be_unchecked_and_not_refused():
    plan = plan_of("amp=fp8", "cluster.setup=[module load torchao]", facts=LAPTOP)
    assert (
        "not checked: torchao 0.18 or newer with what cluster.setup loads; a run ends at once without it" in plan.advice
    )
    here = plan_of("amp=fp8", "cluster.setup=[ulimit -c 0]")
    assert not [line for line in here.advice if "not checked" in line], "this Python has it"


def in_image(**known: Any) -> Facts:
    return with_containers(LAPTOP, image="cpu", **known)


IN_DOCKER = ("container=docker", "image=cpu")


@pytest.mark.parametrize(
    ("words", "packages", "says"),
    [
        (("amp=fp8",), {"torch": "2.13.0"}, r"torchao 0\.\d+ or newer, and it is not installed in image=cpu: add RUN "),
        (("amp=fp8",), {"torchao": "0.8.0+git1"}, r"and there is 0\.8\.0\+git1 in image=cpu: .*pip=\[torchao=="),
    ],
)
def test_an_image_that_lacks_the_library_is_refused_with_the_line_that_adds_it(
    words: tuple[str, ...], packages: dict[str, str], says: str
):
    with pytest.raises(UsageError, match=says):
        plan_of(*words, *IN_DOCKER, facts=in_image(image_packages=packages))


def test_nothing_is_said_of_an_image_that_has_the_library():
    plan = plan_of("amp=fp8", *IN_DOCKER, facts=in_image(image_packages=WITH_TORCHAO))
    assert not [line for line in plan.advice if "not checked" in line]


@pytest.mark.parametrize(
    ("more", "known", "why"),
    [
        ((), {"image_unread": "Slurm fetches it on the node"}, "Slurm fetches it on the node"),
        (("mounts=[/opt/more:/usr/lib/more]",), {"image_packages": {}}, "mounts= may change what its Python finds"),
        (("env.PATH=/opt/venv/bin:/usr/bin",), {"image_packages": {}}, "env.PATH may change which Python runs"),
        (("env.PYTHONHOME=/opt/venv",), {"image_packages": {}}, "env.PYTHONHOME may change which Python runs"),
    ],
)
def test_an_image_that_was_not_looked_into_is_said_to_be_unchecked(
    more: tuple[str, ...], known: dict[str, Any], why: str
):
    plan = plan_of("amp=fp8", *IN_DOCKER, *more, facts=in_image(**known))
    (line,) = [line for line in plan.advice if line.startswith("not checked: torchao 0.")]
    assert line.endswith(f" or newer in the image ({why}); a run ends at once without it")
