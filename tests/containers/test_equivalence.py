"""The same description, the same probes, the real runtimes: Docker, podman, and Apptainer from a SIF file
and from a sandbox. Each runtime is started once with everything at once, and what it found is looked at from all sides.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import Any

import pytest

from launcher.containers import preflight
from launcher.containers.description import Mount
from launcher.containers.runtime import Runtime
from launcher.containers.words import EnvArg
from tests.containers.hostile import LONG, TABLE, VALUES
from tests.containers.real import APPTAINER, CONTAINED, DOCKER, PODMAN, Place, contrary_of, image_of
from tests.testbed.facts import Testbed

pytestmark = pytest.mark.testbed

SECRET = "s3cret $(id) 'x' \"y\" é"
LATE = {"LAUNCHER_ATTEMPT": "3", "MASTER_ADDR": "n1 $(id)", "SLURM_NODEID": "1"}
WORDS = (*TABLE, LONG, EnvArg("SLURM_NODEID", "--node-rank="), EnvArg("MASTER_ADDR", "'$(id)", '"'))
FILLED = [*TABLE, LONG, "--node-rank=1", "'$(id)n1 $(id)\""]
ENVIRONMENT = {**VALUES, "LONG": LONG, "http_proxy": "http://proxy:1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}

WAYS = ("docker", "podman", "apptainer-sif", "apptainer-sandbox")


def runtime_of(way: str) -> Runtime:
    return {"docker": DOCKER, "podman": PODMAN}.get(way, APPTAINER)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def seen(way: str, shared_place: Place, testbed: Testbed) -> dict[str, Any]:
    """What the probe found in a container with everything in it."""
    key = shared_place.write(".secret key", SECRET + "\n")
    container = shared_place.container(
        testbed.images["python"].sif if way == "apptainer-sif" else image_of(runtime_of(way), testbed),
        code=37,
        words=WORDS,
        environment=ENVIRONMENT,
        passed=("LAUNCHER_ATTEMPT", "MASTER_ADDR"),
        secrets={"API_KEY": str(key)},
        limits={"nofile": 512, "core": 0},
        devices=(),
    )
    preflight.check_container(container, runtime_of(way))
    return shared_place.probe(container, runtime_of(way), LATE)


def test_arguments_variables_and_secrets_arrive_byte_for_byte(seen: dict[str, Any]) -> None:
    assert seen["argv"] == FILLED
    assert {name: seen["env"].get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert seen["env"]["API_KEY"] == SECRET
    assert (seen["env"]["LAUNCHER_ATTEMPT"], seen["env"]["MASTER_ADDR"]) == ("3", "n1 $(id)"), "known at the start"
    assert seen["encoding"] == "utf-8"


def test_it_runs_in_its_folder_as_the_user_within_its_limits(
    seen: dict[str, Any], shared_place: Place, testbed: Testbed
) -> None:
    user, state = testbed.user, (shared_place.run / "probe.json").stat()
    assert (seen["uid"], seen["gid"], seen["user"], seen["groups"]) == (user.uid, user.gid, user.name, [user.gid])
    assert (state.st_uid, state.st_gid) == (user.uid, user.gid)
    assert (seen["cwd"], seen["exit_code"]) == (str(shared_place.code), 37)
    assert seen["limits"] == {"nofile": [512, 512], "core": [0, 0]}


def test_no_gpu_is_seen_where_none_is_given(seen: dict[str, Any], way: str) -> None:
    assert seen["env"].get("CUDA_VISIBLE_DEVICES", "") == ""
    assert seen["env"].get("NVIDIA_VISIBLE_DEVICES") == ("void" if way in ("docker", "podman") else None)


def test_home_is_a_folder_that_stays_and_can_be_written(seen: dict[str, Any], shared_place: Place) -> None:
    assert seen["home_is_writable"]
    assert seen["home"] == str(shared_place.folder / "cache" / "home")
    assert (shared_place.folder / "cache" / "home" / ".probe").exists(), "it outlives the container"
    assert (shared_place.folder / "cache").stat().st_mode & 0o777 == 0o700
    assert seen["env"]["XDG_CACHE_HOME"] == str(shared_place.folder / "cache")


def test_the_code_is_read_only_and_the_users_packages_stay_out(seen: dict[str, Any]) -> None:
    assert not seen["code_is_writable"] and not seen["user_site"]


def test_nothing_was_evaluated_or_complained_about(seen: dict[str, Any]) -> None:
    assert "uid=" not in seen["stdout"] + seen["stderr"]
    assert "rror" not in seen["stderr"], seen["stderr"]


def hostile_mounts(place: Place) -> tuple[Mount, ...]:
    """Folders with hostile names, each with a file of its number, mounted under hostile names."""
    names = sorted({text.replace("/", "_") for text in TABLE if len(text.encode()) < 200} - {"", ".", "..", ":ro"})
    mounts = []
    for index, name in enumerate(names):
        source = place.folder / "sources" / name
        source.mkdir(parents=True)
        (source / str(index)).write_text("")
        mounts.append(Mount(source=str(source), target=f"/mounted/{name}", read_only=True))
    return tuple(mounts)


@CONTAINED
def test_hostile_paths_are_mounted_under_hostile_names_and_ipc_and_network_are_private_where_asked(
    runtime: Runtime, place: Place, testbed: Testbed
) -> None:
    mounts, inside = hostile_mounts(place), place.code / '-x a b\'s é 漢字 $(id) a,b "hi" a\\b a=b *'
    inside.mkdir()
    plain = place.container(image_of(runtime, testbed))
    container = dataclasses.replace(plain, mounts=(*plain.mounts, *mounts))
    preflight.check_container(container, runtime)
    seen = place.probe(dataclasses.replace(container, workdir=str(inside)), runtime)
    assert len(mounts) > 100
    assert seen["mounted"] == {str(index): mount.target.removeprefix("/mounted/") for index, mount in enumerate(mounts)}
    assert seen["cwd"] == str(inside)
    own = place.probe(dataclasses.replace(plain, ipc="private", network="none"), runtime)
    assert seen["ipc"] == os.readlink("/proc/self/ns/ipc") != own["ipc"]
    assert seen["interfaces"] == sorted(name for _, name in socket.if_nameindex())
    assert own["interfaces"] == ["lo"]


@CONTAINED
def test_the_job_wins_over_an_image_that_wants_otherwise(runtime: Runtime, place: Place, testbed: Testbed) -> None:
    devices = ("0",) if runtime is APPTAINER else None  # the testbed's engines have no GPU to give
    image = contrary_of(runtime, testbed)
    container = place.container(image, code=5, environment={"BOTH": "job"}, devices=devices)
    seen = place.probe(container, runtime)
    assert seen["env"]["FROM_IMAGE"] == "image"
    assert seen["env"]["BOTH"] == "job"
    assert seen["env"]["PYTHONNOUSERSITE"] == "1"
    assert seen["env"]["XDG_CACHE_HOME"] == container.cache
    if runtime is APPTAINER:
        assert seen["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert (seen["home"], seen["cwd"], seen["uid"]) == (container.home, container.workdir, place.user.uid)
    assert (seen["exit_code"], seen["stdout"]) == (5, "")
