"""What every runtime is told, byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.containers.apptainer import no_eval
from launcher.containers.description import Container, Mount
from launcher.containers.devices import VARIABLE
from launcher.containers.runtime import Runtime
from launcher.containers.runtimes import wrap
from launcher.containers.words import EnvArg, EnvArgs, to_bash
from tests import golden
from tests.containers.samples import APPTAINER, DOCKER, FULL, IMAGES, PODMAN, RUNTIMES

GOLDEN = Path(__file__).parent / "golden"


def sample(runtime: str) -> Container:
    """The full sample as this runtime can have it."""
    kind = RUNTIMES[runtime].kind
    container = dataclasses.replace(FULL, image=IMAGES[kind], devices="job" if kind == "pyxis" else FULL.devices)
    if kind == "pyxis":
        mounts = tuple(mount for mount in FULL.mounts if " " not in mount.source)
        return dataclasses.replace(container, mounts=mounts, secrets={"API_KEY": "/home/mei/.api_key"})
    if runtime == "singularity-3.8":
        return dataclasses.replace(container, environment={"LAUNCHER_RUN_ID": "20260102-030405-calm-fox"})
    return container


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_golden_command(runtime: str) -> None:
    wrapped = wrap(sample(runtime), RUNTIMES[runtime])
    lines = [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    lines += [f"mkdir -p -m 700 {to_bash(folder)}" for folder in wrapped.folders]
    lines += [" ".join(map(to_bash, wrapped.remove))] if wrapped.remove else []
    lines += [" \\\n  ".join(map(to_bash, wrapped.argv))]
    golden.assert_text(GOLDEN / f"{runtime}.sh", "\n".join(lines) + "\n")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_secret_path_and_no_value_of_a_secret_is_needed_to_write_the_script(runtime: str) -> None:
    """The file is named where it is mounted or read, and nowhere else."""
    wrapped = wrap(sample(runtime), RUNTIMES[runtime])
    naming = [word for word in wrapped.argv if isinstance(word, str) and ".api" in word]
    assert len(naming) == 1
    assert not any("API_KEY" in name for name in wrapped.environment)


def test_a_folder_is_mounted_before_what_lies_in_it() -> None:
    inner, outer = Mount(source="/s/inner", target="/a/b/c/d"), Mount(source="/s/outer", target="/a")
    wrapped = wrap(dataclasses.replace(sample("docker"), mounts=(inner, outer), secrets={}), DOCKER)
    mounts = [word for word in wrapped.argv if isinstance(word, str) and word.startswith("--mount=")]
    assert [mount.rpartition("=")[2] for mount in mounts][:2] == ["/a", "/data/runs/.cache"]
    assert mounts[-1].endswith("target=/a/b/c/d")


def words_of(runtime: Runtime, **changes: object) -> tuple[object, ...]:
    container = dataclasses.replace(sample("docker"), secrets={}, **changes)  # type: ignore[arg-type]
    return wrap(container, runtime).argv


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, set()),
        ({"terminal": True}, {"--interactive", "--tty"}),
        ({"reads_input": True}, {"--interactive"}),
    ],
)
def test_an_engine_gives_a_container_an_input_where_it_has_one(changes: dict[str, bool], words: set[str]) -> None:
    assert {"--interactive", "--tty"} & set(words_of(DOCKER, **changes)) == words


def test_in_a_rootless_docker_its_root_is_the_user() -> None:
    rootless = dataclasses.replace(DOCKER, rootless=True)
    users = [[word for word in words_of(each) if str(word).startswith("--user=")] for each in (DOCKER, rootless)]
    assert users == [["--user=1001:1002"], ["--user=0:0"]]


def test_the_jobs_own_gpus_are_named_as_each_engine_takes_them() -> None:
    names = {
        runtime.kind: [word for word in words_of(runtime, devices="job") if isinstance(word, EnvArg | EnvArgs)]
        for runtime in (DOCKER, PODMAN)
    }
    assert EnvArg(VARIABLE, '--gpus="device=', '"') in names["docker"]
    assert EnvArgs(VARIABLE, "--device=nvidia.com/gpu=") in names["podman"]


@pytest.mark.parametrize(
    ("source", "target", "word"),
    [
        ("/data", "/d", "--bind=/data:/d"),
        ("/a,b", "/d", '--mount=type=bind,"source=/a,b",target=/d'),
        ("/data", "/d:e", "--mount=type=bind,source=/data,target=/d:e"),
    ],
)
def test_apptainer_binds_plain_paths_and_mounts_others(source: str, target: str, word: str) -> None:
    assert word in words_of(APPTAINER, image=IMAGES["apptainer"], mounts=(Mount(source=source, target=target),))


@pytest.mark.parametrize(("version", "has"), [((), True), ((1, 0, 2), False), ((1, 1), True), ((1, 4, 5), True)])
def test_a_new_apptainer_evaluates_no_value(version: tuple[int, ...], has: bool) -> None:
    assert no_eval(dataclasses.replace(APPTAINER, version=version)) == has
