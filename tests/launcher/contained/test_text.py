"""Plans with a container: what is refused, and the script byte for byte in every runtime."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from launcher.containers.runtime import Runtime
from launcher.errors import Unavailable, UsageError
from launcher.plan.model import Plan
from launcher.plan.record import from_json, to_json
from launcher.plan.resolve import resolve
from launcher.probe.facts import ContainerFacts, Facts, Script
from launcher.script.render import render
from tests import golden
from tests.launcher.hosts import LAPTOP, TWO_A100, gpu, spec_of
from tests.launcher.slurm.test_text import LOGIN, partition

GOLDEN = Path(__file__).parent / "golden"
PYXIS_IMAGE = "nvcr.io#nvidia/pytorch:25.06-py3"
RUNTIMES = {
    "docker": Runtime(kind="docker", command=("docker",), version=(28, 0)),
    "podman": Runtime(kind="podman", command=("podman",), version=(5, 0)),
    "apptainer": Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4)),
    "pyxis": Runtime(kind="pyxis", command=("srun",)),
}


def with_containers(facts: Facts, **changes: Any) -> Facts:
    values: dict[str, Any] = {
        "runtimes": RUNTIMES,
        "architecture": "amd64",
        "image": "/images/torch.sif",
        "image_present": True,
        "image_architecture": "amd64",
        "uid": 1000,
        "gid": 1000,
        "groups": (1000, 27),
    }
    return dataclasses.replace(facts, containers=ContainerFacts(**{**values, **changes}), python="python3")


def with_gpu(capability: str, driver: str) -> Facts:
    """A machine with one data-centre GPU."""
    card = dataclasses.replace(gpu(0, capability, "a card"), driver=driver)
    return dataclasses.replace(LAPTOP, gpus=(card,))


def plan_of(facts: Facts, *words: str) -> Plan:
    return resolve(spec_of(*words), facts)


NGC = "nvcr.io/nvidia/pytorch:25.06-py3"
SIF = "container=apptainer image=/images/torch.sif"
ODD = ("env.A=it's $(id), a=b", "secrets.KEY=~/.key")
CASES: dict[str, tuple[Facts, tuple[str, ...]]] = {
    "docker-gpu": (
        with_containers(TWO_A100, image=NGC),
        (*f"container=docker image={NGC} visible_gpus=[1] mounts=[/data/imagenet:/data:ro] batch=256".split(), *ODD),
    ),
    "docker-any-gpu": (
        with_containers(TWO_A100, image="local/torch"),
        ("container=docker", "image=local/torch", "gpus=1"),
    ),
    "podman-gpus": (with_containers(TWO_A100, image="local/torch"), ("container=podman", "image=local/torch")),
    "apptainer-gpu": (with_containers(TWO_A100), (*SIF.split(), "gpus=1", *ODD)),
    "apptainer-cpu": (with_containers(LAPTOP), ("container=singularity", "image=/images/torch.sif")),
    "slurm-docker": (
        with_containers(LOGIN, image="local/torch"),
        ("cluster=slurm", "container=docker", "image=local/torch", "gpus=2", "nodes=2", "batch=512"),
    ),
    "slurm-apptainer": (with_containers(LOGIN), ("cluster=slurm", *SIF.split(), "gpus=2", "batch=512")),
    "slurm-pyxis": (
        with_containers(LOGIN, image=PYXIS_IMAGE),
        ("cluster=slurm", "container=pyxis", f"image={PYXIS_IMAGE}", "gpus=4", "nodes=2", "batch=512"),
    ),
}


BASES = {
    "podman-gpus": "docker-gpu",
    "slurm-docker": "docker-gpu",
    "apptainer-gpu": "docker-gpu",
    "slurm-apptainer": "apptainer-gpu",
    "slurm-pyxis": "slurm-apptainer",
}
"""Scripts whose golden file is what is different in them from another one."""


def script_of(name: str) -> str:
    facts, words = CASES[name]
    return render(plan_of(facts, *words).bind("20260102-030405-calm-fox"))


def test_golden_scripts_in_containers() -> None:
    golden.assert_text(GOLDEN / "docker-gpu.sh", script_of("docker-gpu"))
    for name, base in BASES.items():
        golden.check_difference(GOLDEN / f"{name}.sh.diff", script_of(name), script_of(base))


def test_shellcheck_reports_nothing_in_scripts_in_containers() -> None:
    golden.shellcheck({name: script_of(name) for name in CASES})


def test_the_gpus_that_a_script_chose_are_those_of_its_container() -> None:
    text = script_of("docker-any-gpu")
    assert "take_gpus 1 'GPU-0000-0 GPU-0000-1' 20260102-030405-calm-fox ''\n" in text
    assert """ '--gpus="device='"$LAUNCHER_GPUS"'"' \\\n""" in text


@pytest.mark.parametrize("name", CASES)
def test_a_plan_with_a_container_survives_json(name: str) -> None:
    facts, words = CASES[name]
    plan = plan_of(facts, *words)
    assert from_json(to_json(plan)) == plan


IN_DOCKER = "container=docker image=x"
BARE = ("recipe=script", "script=image:a.py", "train.bare=true", "require_proof=false")
ON_H100 = dataclasses.replace(LOGIN.slurm, partitions=(partition("gpu", default=True, gpu_types=("h100",)),))


@pytest.mark.parametrize(
    ("facts", "words", "says"),
    [
        (with_gpu("10.0", "570.86.15"), ("image=ngc-pytorch:24.10",), "its CUDA 12.6.2 is older than this GPU"),
        (with_gpu("8.0", "510.47.03"), ("image=ngc-pytorch:24.10",), "its CUDA 12.6.2 needs driver 525.60"),
        (with_gpu("6.0", "580.65.06"), ("image=ngc-pytorch:25.09", "amp=o0"), "it needs compute capability 7.5"),
        (
            dataclasses.replace(LOGIN, slurm=ON_H100),
            ("cluster=slurm", "gpus=1", "image=ngc-pytorch:21.04", "amp=o0", *BARE),
            "its CUDA 11.3.0 is older than this GPU of compute capability 9.0",
        ),
    ],
)
def test_an_image_that_the_gpus_or_their_driver_cannot_run_is_refused_with_one_that_they_can(facts, words, says):
    with pytest.raises(UsageError, match=f"{says}.*; the nearest that would do is image=ngc-pytorch:"):
        plan_of(with_containers(facts, image="x"), "container=pyxis" if facts.slurm else "container=docker", *words)


@pytest.mark.parametrize(
    ("facts", "words", "says"),
    [
        (with_gpu("8.0", "470.82.01"), (), "its CUDA 12.4.1 needs driver 525.60 (or NVIDIA's forward compatibility "),
        (
            with_gpu("12.0", "580.82.07"),
            (),
            "its CUDA 12.4.1 is older than this GPU of compute capability 12.0; expect",
        ),
        (with_gpu("12.0", "580.82.07"), ("gpus=0",), ""),
        (with_gpu("8.9", "550.54.15"), (), ""),
        (LAPTOP, (), ""),
    ],
)
def test_the_cuda_version_of_an_own_image_is_checked_against_the_gpus_as_advice(facts, words, says):
    image = ("container=apptainer", "image=/images/torch.sif", *words)
    notes = plan_of(with_containers(facts, image_cuda="12.4.1"), *image).advice
    about = [note for note in notes if "CUDA" in note]
    assert len(about) == bool(says)
    assert all(note.startswith(f"image=/images/torch.sif: {says}") for note in about)


@pytest.mark.parametrize(
    ("driver", "image", "words", "counted_on"),
    [
        ("470.82.01", "ngc-pytorch:24.10", (), True),  # a branch that NVIDIA supports for it on data-centre GPUs
        ("535.104.05", "ngc-pytorch:24.10", (), False),  # any driver from 525 on runs CUDA 12
        ("560.35.03", "ngc-pytorch:24.10", (), False),
        ("470.82.01", "ngc-pytorch:24.10", ("gpus=0",), False),
        ("470.82.01", "/images/torch.sif", (), True),
        ("550.54.15", "/images/torch.sif", (), False),
    ],
)
def test_forward_compatibility_is_switched_on_where_the_plan_counts_on_it(driver, image, words, counted_on) -> None:
    facts = with_containers(with_gpu("8.0", driver), image="x", image_cuda="12.4.1")
    plan = plan_of(facts, "container=apptainer", f"image={image}", *words)
    assert plan.container is not None
    assert plan.container.forward_compatibility == counted_on
    assert ("/usr/local/cuda/compat/lib.real" in render(plan.bind("20260102-030405-calm-fox"))) == counted_on
    assert any("forward compatibility" in note for note in plan.advice) == counted_on


def test_the_gpus_of_a_host_do_not_matter_to_a_job_that_gets_none() -> None:
    old = with_containers(with_gpu("8.0", "510.47.03"), image="x")
    assert plan_of(old, "container=docker", "image=ngc-pytorch:24.10", "gpus=0").gpus == 0


def test_code_run_folder_and_data_lie_where_they_are_on_the_host() -> None:
    facts = dataclasses.replace(with_containers(LAPTOP), folders={"/data": ()})
    words = ("container=apptainer", "image=/images/torch.sif", "data=mnist", "data.dir=/data", "data.download=true")
    plan = plan_of(facts, *words)
    binds = [f"{folder}:{folder}" for folder in (plan.run_dir, "/data", plan.code_dir)]
    assert all(f"--bind={bind} " in render(plan) for bind in (*binds[:2], f"{binds[2]}:ro"))


def test_a_secret_is_in_no_line_of_the_script_but_its_file() -> None:
    text = script_of("docker-gpu")
    assert "/home/mei/.key" in text
    assert "--env=KEY" not in text


@pytest.mark.parametrize(
    ("facts", "words", "says"),
    [
        (with_containers(LAPTOP), "container=docker", "container=docker needs image="),
        (with_containers(LAPTOP, image_present=False), IN_DOCKER, "image=x is not on this host"),
        (with_containers(LAPTOP, image_architecture="arm64"), IN_DOCKER, "is made for arm64 and this host is amd64"),
        (with_containers(LAPTOP), "container=pyxis image=x", "container=pyxis is a plugin of Slurm"),
        (with_containers(LAPTOP), f"{IN_DOCKER} mounts=[/a:b]", "should be absolute, as /b"),
        (with_containers(LAPTOP), f"{IN_DOCKER} mounts=[/a:/b,/c:/b]", "/b already holds /a"),
        (dataclasses.replace(with_containers(LAPTOP), missing=("/a",)), f"{IN_DOCKER} mounts=[/a:/b]", "/a is not th"),
        (with_containers(LAPTOP), f"{IN_DOCKER} env.HOME=/x", "env.HOME: HOME is set by the launcher"),
        (with_containers(LAPTOP), f"{IN_DOCKER} secrets.UID=/home/mei/.key", "secrets.UID: UID is set by the launcher"),
        (with_containers(LAPTOP), f"{IN_DOCKER} container.shm=64", "container.shm needs container.ipc=private"),
    ],
)
def test_an_impossible_container_is_refused(facts: Facts, words: str, says: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_of(facts, *words.split())
    assert says in str(error.value)


def test_a_runtime_that_is_not_there_is_unavailable_rather_than_wrong() -> None:
    with pytest.raises(Unavailable, match="not installed on this host, which has none"):
        plan_of(with_containers(LAPTOP, runtimes={}), *IN_DOCKER.split())


def test_limits_are_configuration() -> None:
    facts = with_containers(LAPTOP, image="x")
    assert "--ulimit=memlock=-1" in render(plan_of(facts, *IN_DOCKER.split()))
    assert "--ulimit" not in render(plan_of(facts, *IN_DOCKER.split(), "container.limits=null"))


@pytest.mark.parametrize("container", ["apptainer", "podman", "docker"])
def test_a_bare_scripts_own_working_folder_is_made_before_its_container_starts(container: str) -> None:
    image = "/images/torch.sif" if container == "apptainer" else "local/torch"
    script = Script(path="/home/mei/train.py", name="script/train.py")
    facts = dataclasses.replace(with_containers(LAPTOP, image=image), scripts={"train.py": script})
    words = ("recipe=script", "script=train.py", "workdir=run", "train.bare=true", "train.precision=script")
    plan = plan_of(facts, *words, "require_proof=false", f"container={container}", f"image={image}")
    assert f"mkdir -p -m 700 {plan.run_dir}/work" in render(plan)
