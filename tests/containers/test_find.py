from __future__ import annotations

from collections.abc import Sequence

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers.find import LocalImage, architecture, check_image, find_image, installed, version
from launcher.containers.programs import output
from launcher.containers.runtime import Kind, Runtime
from tests.containers.samples import APPTAINER, DOCKER, PYXIS


class Host:
    """A host that answers from a table; every other question fails."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers

    def __call__(self, argv: Sequence[str]) -> str | None:
        joined = " ".join(argv)
        return next((text for start, text in self.answers.items() if joined.startswith(start)), None)


def test_a_bare_host_has_no_runtime() -> None:
    assert installed(Host()) == {}


def test_a_full_host_has_them_all() -> None:
    host = Host(
        **{
            "docker --version": "Docker version 28.2.2, build e6534b4\n",
            "docker info": '["name=seccomp,profile=default"]\n',
            "podman --version": "podman version 5.2.0\n",
            "apptainer --version": "apptainer version 1.4.5\n",
            "srun --help": "  --container-image=[USER@][REGISTRY#]IMAGE\n",
            "sh -c command -v nvidia": "/usr/bin/nvidia-ctk\n",
            "sh -c ls /etc/cdi": "nvidia.yaml\n",
        }
    )
    assert installed(host) == {
        "docker": Runtime(kind="docker", command=("docker",), version=(28, 2, 2)),
        "podman": Runtime(kind="podman", command=("podman",), version=(5, 2, 0)),
        "apptainer": Runtime(kind="apptainer", command=("apptainer",), product="apptainer", version=(1, 4, 5)),
        "pyxis": Runtime(kind="pyxis", command=("srun",)),
    }


@pytest.mark.parametrize(
    ("kind", "answers", "expected"),
    [
        ("docker", {"docker --version": "Docker version 28.2.2"}, {"problem": "engine does not answer"}),
        ("docker", {"docker --version": "Docker version 27.1", "docker info": "[]"}, {"gpu_problem": "toolkit is not"}),
        ("docker", {"docker --version": "27.1", "docker info": '["name=rootless"]'}, {"rootless": "True"}),
        ("podman", {"podman --version": "podman version 5.2.0"}, {"gpu_problem": "nvidia-ctk cdi generate"}),
    ],
)
def test_what_an_engine_lacks_is_known(kind: Kind, answers: dict[str, str], expected: dict[str, str]) -> None:
    runtime = installed(Host(**answers))[kind]
    for name, text in expected.items():
        assert text in str(getattr(runtime, name))


@pytest.mark.parametrize(
    ("program", "text", "product", "number"),
    [
        ("singularity", "singularity version 3.8.7-1.el8", "singularity", (3, 8, 7)),
        ("singularity", "singularity-ce version 3.11.4-focal", "singularity", (3, 11, 4)),
        ("singularity", "apptainer version 1.2.5-1.el9", "apptainer", (1, 2, 5)),
        ("apptainer", "apptainer version 1.4.5", "apptainer", (1, 4, 5)),
    ],
)
def test_singularity_and_apptainer_are_distinguished_by_their_version_text(
    program: str, text: str, product: str, number: tuple[int, ...]
) -> None:
    runtime = installed(Host(**{f"{program} --version": text}))["apptainer"]
    assert runtime == Runtime(kind="apptainer", command=(program,), product=product, version=number)


def test_srun_without_the_plugin_is_no_pyxis() -> None:
    assert installed(Host(**{"srun --help": "Usage: srun [OPTIONS]"})) == {}


def test_a_program_that_gives_no_number_has_no_version() -> None:
    assert version("development build") == ()


def test_a_machine_is_named_as_registries_do() -> None:
    assert architecture(Host(uname="x86_64\n")) == "amd64"
    assert architecture(Host(uname="riscv64\n")) == "riscv64"


def test_an_image_that_is_not_there_is_refused_with_the_command_that_fetches_it() -> None:
    image = find_image("nvcr.io/nvidia/pytorch:25.06-py3", DOCKER, Host())
    with pytest.raises(
        SettingsError, match=r"25\.06 is not on this host: docker has no .*; `docker pull nvcr\.io/.*` fe"
    ):
        check_image(image, "ngc-pytorch:25.06", "amd64", "docker")


def test_an_image_for_other_machines_is_refused() -> None:
    host = Host(docker='[{"Id": "sha256:1", "Architecture": "arm64"}]')
    image = find_image("a/b", DOCKER, host)
    assert image == LocalImage(name="a/b", present=True, identity="sha256:1", architecture="arm64")
    with pytest.raises(SettingsError, match="made for arm64 and this host is amd64"):
        check_image(image, "a/b", "amd64", "docker")


def test_the_architecture_of_a_sif_is_read_from_its_header(tmp_path) -> None:
    path = tmp_path / "a image.sif"
    path.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\00001\00004\0rest")
    assert find_image(str(path), APPTAINER, output).architecture == "arm64"
    (tmp_path / "sandbox").mkdir()
    assert find_image(str(tmp_path / "sandbox"), APPTAINER, output) == LocalImage(
        name=str(tmp_path / "sandbox"), present=True
    )
    assert not find_image(str(tmp_path / "none"), APPTAINER, output).present


def test_pyxis_fetches_what_it_has_not_got() -> None:
    assert find_image("nvcr.io#nvidia/pytorch", PYXIS, Host()).present


@pytest.mark.testbed
def test_the_testbeds_own_runtimes_and_images_are_found(testbed) -> None:
    def ask(argv: Sequence[str]) -> str | None:
        return output(testbed.as_user(argv))

    docker, apptainer = (installed(ask)[kind] for kind in ("docker", "apptainer"))
    assert (docker.problem, docker.rootless) == ("", False)
    assert apptainer.product == "apptainer"
    here = architecture(ask)
    for runtime, name in ((docker, testbed.images["python"].docker), (apptainer, testbed.images["python"].sif)):
        image = find_image(name, runtime, ask)
        assert (image.present, image.architecture) == (True, here)
        check_image(image, name, here, runtime.kind)
    assert not find_image("no/such:image", docker, ask).present


@pytest.mark.parametrize(("image", "host"), [("amd64", "amd64"), ("", "amd64"), ("arm64", ""), ("", "")])
def test_an_image_of_the_hosts_architecture_or_of_an_unknown_one_passes(image: str, host: str) -> None:
    check_image(LocalImage(name="a/b", present=True, architecture=image), "a/b", host, "docker")


def inspected(config: str) -> dict[str, str]:
    record = '[{"Id": "sha256:1", "Architecture": "amd64", "Config": %s}]'
    return {"docker image inspect": record % config}


def sif(environment: str) -> dict[str, str]:
    return {"test -e": "", "apptainer inspect --environment": environment}


@pytest.mark.parametrize(
    ("runtime", "answers", "cuda"),
    [
        (DOCKER, inspected('{"Env": ["PATH=/bin", "CUDA_VERSION=12.4.1.003"]}'), "12.4.1"),
        (DOCKER, inspected("{}"), ""),
        (APPTAINER, sif('export A="x"\nexport CUDA_VERSION="${CUDA_VERSION:-"11.8.0"}"\n'), "11.8.0"),
        (APPTAINER, sif('export NV_CUDA_VERSION="12"\n'), ""),
        (APPTAINER, {"test -e": ""}, ""),
    ],
)
def test_the_cuda_version_that_an_image_declares_is_read(runtime: Runtime, answers: dict[str, str], cuda: str) -> None:
    image = find_image("/images/torch.sif", runtime, Host(**answers))
    assert image.present and image.cuda == cuda
