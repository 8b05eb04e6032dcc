"""What is not pulled: refused before a client runs, or by a client that fails. Registries are real, on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers import store
from launcher.containers.pull import Pulled, PullError, stored, to_come
from launcher.containers.references import resolve
from launcher.containers.runtime import Kind, Runtime
from tests.containers.registry_server import Registry
from tests.containers.test_pull import files, get


@pytest.mark.parametrize("authentication", ["basic", "bearer"])
def test_a_private_image_is_refused_with_the_login_that_fetches_it(authentication: str, tmp_path: Path) -> None:
    says = "for a key alone: .*apptainer registry login docker://.*image=FILE.sif"
    with Registry("private", authentication=authentication) as registry, pytest.raises(PullError, match=says):
        get(registry, Runtime(kind="apptainer", command=("/no/such/client",)), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


NOBODY = Runtime(kind="apptainer", command=("/no/such/client",))


def test_an_image_that_does_not_exist_is_refused_by_name(tmp_path: Path) -> None:
    with Registry("missing") as registry, pytest.raises(SettingsError, match=r"has no .*/test/image:v9"):
        get(f"{registry.name}:v9", NOBODY, tmp_path)


def test_an_image_for_other_machines_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with Registry("arm", architecture="arm64", index=True) as registry:
        with pytest.raises(SettingsError, match="is made for arm64 and this host is amd64"):
            get(registry, NOBODY, tmp_path)
        assert registry.blob_fetches == 0


def test_a_registry_that_is_down_is_reported(tmp_path: Path) -> None:
    with Registry("down") as registry:
        name = registry.name
    with pytest.raises(PullError, match=r"127\.0\.0\.1:\d+ does not answer: .*refused"):
        get(name, NOBODY, tmp_path)


def test_a_client_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Registry("no client") as registry, pytest.raises(PullError, match="/no/such/client: No such file"):
        get(registry, NOBODY, tmp_path / "cache")
    assert files(tmp_path / "cache") == []


def test_a_cache_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    with Registry("no cache") as registry, pytest.raises(PullError, match=r"file/cache: Not a dir.*; name a folder"):
        (tmp_path / "file").touch()
        get(registry, NOBODY, tmp_path / "file/cache")


def test_an_image_that_is_in_the_cache_is_not_fetched_again_and_is_found_by_its_name_for_apptainer_alone(
    tmp_path: Path,
) -> None:
    with Registry("cached") as registry:
        path = store.path_of(tmp_path, registry.digest)
        path.write_bytes(b"\0" * 32 + b"SIF_MAGIC" + b"\0" * 87)
        image = resolve(registry.name)
        assert stored(image, NOBODY, tmp_path) == ""
        assert get(registry, NOBODY, tmp_path) == Pulled(name=str(path), digest=registry.digest, fetched=False)
    assert stored(image, NOBODY, tmp_path) == str(path)
    assert stored(image, Runtime(kind="docker"), tmp_path) == ""


def test_there_is_no_pull_of_a_file_or_without_a_runtime_that_pulls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a file or folder; there is nothing to fetch"):
        get("/a/b.sif", NOBODY, tmp_path)
    kinds: dict[Kind, str] = {"docker": "say docker pull docker.io/library/python:latest", "pyxis": "pyxis needs"}
    for kind, instead in kinds.items():
        with pytest.raises(SettingsError, match=f"image pull is for container=apptainer; {instead}"):
            get("python", Runtime(kind=kind), tmp_path)
    for name, runtime in (("/a/b.sif", NOBODY), ("python", Runtime(kind="docker"))):
        assert stored(resolve(name), runtime, tmp_path) == ""
        assert to_come(resolve(name), runtime, tmp_path, "amd64") == ("", "")
