"""The same description, the same probes, the real runtimes: no container, Docker, podman, and Apptainer from a SIF file
and from a sandbox. Each runtime is started once with everything at once, and what it found is looked at from all sides.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from containers import preflight
from containers.apptainer import LOSING
from containers.description import Container, Mount
from containers.runtime import Runtime
from containers.words import EnvArg
from recipes.typed import SettingsError
from tests.containers.hostile import LONG, TABLE, VALUES
from tests.containers.real import APPTAINER, CONTAINED, DOCKER, NONE, PODMAN, Place, contrary_of, image_of
from tests.testbed.facts import Testbed

pytestmark = pytest.mark.testbed

SECRET = "s3cret $(id) 'x' \"y\" é"
LATE = {"LAUNCHER_ATTEMPT": "3", "MASTER_ADDR": "n1 $(id)", "SLURM_NODEID": "1"}
WORDS = (*TABLE, LONG, EnvArg("SLURM_NODEID", "--node-rank="), EnvArg("MASTER_ADDR", "'$(id)", '"'))
FILLED = [*TABLE, LONG, "--node-rank=1", "'$(id)n1 $(id)\""]
ENVIRONMENT = {**VALUES, "LONG": LONG, "http_proxy": "http://proxy:1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}

WAYS = ("none", "docker", "podman", "apptainer-sif", "apptainer-sandbox")


def runtime_of(way: str) -> Runtime:
    return {"none": NONE, "docker": DOCKER, "podman": PODMAN}.get(way, APPTAINER)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def found(way: str, shared_place: Place, testbed: Testbed) -> dict[str, Any]:
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
    preflight.check(container, runtime_of(way))
    return shared_place.probe(container, runtime_of(way), LATE)


def test_arguments_variables_and_secrets_arrive_byte_for_byte(found: dict[str, Any]) -> None:
    assert found["argv"] == FILLED
    assert {name: found["env"].get(name) for name in ENVIRONMENT} == ENVIRONMENT
    assert found["env"]["API_KEY"] == SECRET
    assert (found["env"]["LAUNCHER_ATTEMPT"], found["env"]["MASTER_ADDR"]) == ("3", "n1 $(id)"), "known at the start"
    assert found["encoding"] == "utf-8"


def test_it_runs_in_its_folder_as_the_user_within_its_limits(
    found: dict[str, Any], shared_place: Place, testbed: Testbed
) -> None:
    user, state = testbed.user, (shared_place.run / "probe.json").stat()
    assert (found["uid"], found["gid"], found["user"], found["groups"]) == (user.uid, user.gid, user.name, [user.gid])
    assert (state.st_uid, state.st_gid) == (user.uid, user.gid)
    assert (found["cwd"], found["exit_code"]) == (str(shared_place.code), 37)
    assert found["limits"] == {"nofile": [512, 512], "core": [0, 0]}


def test_no_gpu_is_seen_where_none_is_given(found: dict[str, Any], way: str) -> None:
    assert found["env"].get("CUDA_VISIBLE_DEVICES", "") == ""
    assert found["env"].get("NVIDIA_VISIBLE_DEVICES") == ("void" if way in ("docker", "podman") else None)


def test_home_is_a_folder_that_stays_and_can_be_written(found: dict[str, Any], way: str, shared_place: Place) -> None:
    assert found["home_is_writable"]
    if way != "none":
        assert found["home"] == str(shared_place.folder / "cache" / "home")
        assert (shared_place.folder / "cache" / "home" / ".probe").exists()
        assert found["env"]["XDG_CACHE_HOME"] == str(shared_place.folder / "cache")


def test_the_code_is_read_only_and_the_users_packages_stay_out_in_a_container(found: dict[str, Any], way: str) -> None:
    assert found["code_is_writable"] == (way == "none")
    assert way == "none" or not found["user_site"]


def test_nothing_was_evaluated_or_complained_about(found: dict[str, Any]) -> None:
    assert "uid=" not in found["stdout"] + found["stderr"]
    assert "rror" not in found["stderr"], found["stderr"]


def hostile_mounts(place: Place) -> tuple[Mount, ...]:
    """Folders with hostile names, each with a file of its number, mounted under hostile names."""
    names = sorted({each.replace("/", "_").replace("\x00", "") for each in TABLE if len(each.encode()) < 200})
    names = [each for each in names if each not in ("", ".", "..", ":ro")]
    mounts = []
    for index, name in enumerate(names):
        source = place.folder / "sources" / name
        source.mkdir(parents=True)
        (source / str(index)).write_text("")
        mounts.append(Mount(source=str(source), target=f"/mounted/{name}", read_only=True))
    return tuple(mounts)


@CONTAINED
def test_hostile_paths_are_mounted_under_hostile_names(runtime: Runtime, place: Place, testbed: Testbed) -> None:
    mounts = hostile_mounts(place)
    container = place.container(image_of(runtime, testbed))
    container = dataclasses.replace(container, mounts=(*container.mounts, *mounts))
    preflight.check(container, runtime)
    found = place.probe(container, runtime)
    assert len(mounts) > 100
    assert found["mounted"] == {str(index): each.target.removeprefix("/mounted/") for index, each in enumerate(mounts)}


@CONTAINED
@pytest.mark.parametrize("folder", ['a b\'s é 漢字 $(id) a,b "hi" a\\b a=b *', "-x"])
def test_a_hostile_working_folder(folder: str, runtime: Runtime, place: Place, testbed: Testbed) -> None:
    inside = place.code / folder
    inside.mkdir()
    container = dataclasses.replace(place.container(image_of(runtime, testbed)), workdir=str(inside))
    assert place.probe(container, runtime)["cwd"] == str(inside)


@pytest.mark.parametrize("character", LOSING)
def test_apptainer_really_loses_what_is_refused_for_it(character: str, place: Place, testbed: Testbed) -> None:
    container = place.container(testbed.images["python"].sandbox, environment={"VALUE": character, "OTHER": "x"})
    with pytest.raises(SettingsError, match=r"env\.VALUE: apptainer loses"):
        preflight.check(container, APPTAINER)
    assert place.probe(container, APPTAINER)["env"].get("VALUE") != character
    assert (
        place.probe(dataclasses.replace(container, image=testbed.images["python"].docker), DOCKER)["env"]["VALUE"]
        == character
    )


def contrary(runtime: Runtime, place: Place, testbed: Testbed, **changes: Any) -> Container:
    return place.container(contrary_of(runtime, testbed), **changes)


@CONTAINED
def test_the_job_wins_over_an_image_that_wants_otherwise(runtime: Runtime, place: Place, testbed: Testbed) -> None:
    container = contrary(runtime, place, testbed, code=5, environment={"BOTH": "job"}, devices=("0",))
    if runtime is not APPTAINER:
        container = dataclasses.replace(container, devices=None)  # the testbed's engines have no GPU to give
    found = place.probe(container, runtime)
    assert found["env"]["FROM_IMAGE"] == "image"
    assert found["env"]["BOTH"] == "job"
    assert found["env"]["PYTHONNOUSERSITE"] == "1"
    assert found["env"]["XDG_CACHE_HOME"] == container.cache
    if runtime is APPTAINER:
        assert found["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert (found["home"], found["cwd"], found["uid"]) == (container.home, container.workdir, place.user.uid)
    assert (found["exit_code"], found["stdout"]) == (5, "")


@CONTAINED
def test_a_private_ipc_or_network_is_private(runtime: Runtime, place: Place, testbed: Testbed) -> None:
    ours = place.probe(place.container(image_of(runtime, testbed)), runtime)
    own = place.probe(place.container(image_of(runtime, testbed), ipc="private", network="none"), runtime)
    host = place.probe(place.container(""), NONE)
    assert ours["ipc"] == host["ipc"] != own["ipc"]
    assert ours["interfaces"] == host["interfaces"]
    assert own["interfaces"] == ["lo"]
