from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers.description import Mount
from launcher.containers.preflight import check_container, check_names, choose, parse_mount
from launcher.containers.runtime import Runtime
from tests.containers.samples import APPTAINER, DOCKER, FULL, IMAGES, PYXIS, RUNTIMES, SINGULARITY_3_8

BROKEN = dataclasses.replace(DOCKER, problem="the engine does not answer")
PLAIN = dataclasses.replace(FULL, environment={}, secrets={}, mounts=(), limits={}, devices=None)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_an_ordinary_container_passes(runtime: str) -> None:
    kind = RUNTIMES[runtime].kind
    check_container(dataclasses.replace(PLAIN, image=IMAGES[kind]), RUNTIMES[runtime])


def mounts(*pairs: str) -> dict[str, Any]:
    return {"mounts": tuple(Mount(source=pair.split(">")[0], target=pair.split(">")[1]) for pair in pairs)}


@pytest.mark.parametrize(
    ("change", "runtime", "says", "key"),
    [
        (mounts("/d>data"), DOCKER, "mounts=/d:data: data should be absolute, as /data", "mounts"),
        (mounts("/d>/data", "/e>/data/"), DOCKER, "mounts=/e:/data/: /data already holds /d", "mounts"),
        (mounts("/d>/data/runs/.cache"), DOCKER, "/data/runs/.cache already holds /data/runs/.cache", "mounts"),
        (mounts("/d>/"), DOCKER, "mounts=/d:/: / belongs to the container itself", "mounts"),
        (mounts("/d>/a/.."), APPTAINER, "/ belongs to the container itself", "mounts"),
        (mounts("/d>/proc/x"), DOCKER, "/proc/x belongs to the container itself", "mounts"),
        (mounts("/d>/run/launcher/KEY"), DOCKER, "belongs to the container itself", "mounts"),
        (mounts("/missing>/data"), DOCKER, "mounts=/missing:/data: /missing is not there", "mounts"),
        ({"argv": ("-x",)}, DOCKER, "python=-x is not the name of a program", "python"),
        ({"argv": ()}, DOCKER, "python= is not the name of a program", "python"),
        ({"shm_bytes": 2**30}, DOCKER, "container.shm needs container.ipc=private", "shm"),
        ({"shm_bytes": 2**30}, APPTAINER, "shares the host's /dev/shm", "shm"),
        ({"ipc": "private"}, PYXIS, "pyxis shares the host's /dev/shm", "ipc"),
        ({"network": "none"}, PYXIS, "pyxis shares the host's network", "network"),
        ({"devices": ("0",)}, PYXIS, "Slurm chooses the devices; say gpus=", "visible_gpus"),
        (mounts("/d e>/data"), PYXIS, "pyxis takes letters, digits and @%+=./_- in paths, not ' '", "mounts"),
        ({"cache": "/a:b"}, APPTAINER, "run_root=/a:b: apptainer takes no ':' there", "run_root"),
        ({"environment": {"V": "$x"}}, SINGULARITY_3_8, "env.V: singularity 3.8.7 runs $, `", "env.V"),
        (mounts("/a,b>/data"), SINGULARITY_3_8, "singularity 3.8.7 can't mount such a path", "mounts"),
        ({"environment": {"MASTER_ADDR": "x"}}, DOCKER, "env.MASTER_ADDR: MASTER_ADDR is set", "env.MASTER_ADDR"),
    ],
)
def test_a_container_that_a_runtime_cannot_run_is_refused(
    change: dict[str, Any], runtime: Runtime, says: str, key: str
) -> None:
    container = dataclasses.replace(dataclasses.replace(PLAIN, image=IMAGES[runtime.kind]), **change)
    with pytest.raises(SettingsError) as error:
        check_container(container, runtime, missing=("/missing",))
    assert says in str(error.value)
    assert error.value.key.partition("=")[0] == key


def test_gpus_are_refused_where_the_runtime_cannot_give_them() -> None:
    engine = dataclasses.replace(DOCKER, gpu_problem="there is no NVIDIA container toolkit")
    with pytest.raises(SettingsError, match="container=docker with GPUs: there is no NVIDIA container toolkit"):
        check_container(dataclasses.replace(PLAIN, devices=("0",)), engine)
    check_container(dataclasses.replace(PLAIN, image="x", devices=()), engine)


@pytest.mark.parametrize(
    ("kind", "installed", "says"),
    [
        ("podman", DOCKER, r"container=podman: it is not installed .* which has none, docker"),
        ("docker", BROKEN, "container=docker: the engine does not answer"),
        ("dokcer", DOCKER, r"container=dokcer is not one of none, docker.*did you mean docker\?"),
    ],
)
def test_a_runtime_that_is_not_there_or_does_not_answer_is_refused(kind: str, installed: Runtime, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        choose(kind, {"docker": installed})


def test_singularity_is_what_apptainer_was_called_and_no_container_needs_nothing_installed() -> None:
    assert choose("singularity", {"apptainer": APPTAINER}) is APPTAINER
    assert choose("none", {}).kind == "none"


@pytest.mark.parametrize(
    "name",
    [
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HOME", "PYTHONNOUSERSITE", "LAUNCHER_X", "SLURM_JOB_ID"),
        *("APPTAINERENV_X", "SINGULARITY_BIND", "UID", "PWD", "_", "APPEND_PATH", "BASHOPTS", "PYXIS_CONTAINER_IMAGE"),
    ],
)
def test_a_reserved_variable_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"secrets.{name}: {name} is set by the launcher"):
        check_names([name], "secrets")


def test_ordinary_names_pass() -> None:
    check_names(["A", "_B", "PATH", "LD_LIBRARY_PATH", "http_proxy", "NCCL_DEBUG", "USER", "TERM"], "env")


def test_a_mount_as_people_write_it() -> None:
    for text, mount in {
        "/a:/b": Mount(source="/a", target="/b"),
        "~/a b:/b": Mount(source="~/a b", target="/b"),
        "/a:/b:ro": Mount(source="/a", target="/b", read_only=True),
        "/a:/b:rw": Mount(source="/a", target="/b"),
    }.items():
        assert parse_mount(text) == mount


@pytest.mark.parametrize("text", ["/a", "", ":", "/a:", ":/b", "/a:/b:/c", "/a:/b:rx", "/a:ro"])
def test_a_mount_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="should be SOURCE:TARGET or SOURCE:TARGET:ro"):
        parse_mount(text)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("text", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x80", "\x9f", "\udcff"])
def test_control_characters_and_bytes_that_are_no_text_are_refused_by_name(runtime: str, text: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "env.VALUE": {"environment": {"VALUE": f"a{text}b"}},
        "argv[1]": {"argv": ("python3", f"a{text}b")},
        "mounts[0]": mounts(f"/a{text}>/b"),
        "workdir": {"workdir": f"/a{text}"},
    }
    for key, change in changes.items():
        with pytest.raises(SettingsError, match=r"control character|contains bytes that are not UTF-8") as error:
            check_container(dataclasses.replace(PLAIN, **change), RUNTIMES[runtime])
        assert error.value.key == key


@pytest.mark.parametrize(
    ("runtime", "least", "before"), [(APPTAINER, (1, 1), (1, 0, 9)), (SINGULARITY_3_8, (3, 10), (3, 9, 9))]
)
def test_values_are_safe_from_the_first_version_that_does_not_evaluate_them(runtime, least, before) -> None:
    container = dataclasses.replace(PLAIN, image=IMAGES["apptainer"], environment={"V": "$x"})
    for version in (least, (*least, 1), ()):  # one that is unknown is a recent one
        check_container(container, dataclasses.replace(runtime, version=version))
    with pytest.raises(SettingsError, match=r"env\.V: "):
        check_container(container, dataclasses.replace(runtime, version=before))
