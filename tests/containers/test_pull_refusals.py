"""What is not pulled: refused before a client runs, or by a client that fails. Registries are real, on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_launcher.typed import SettingsError
from launcher.containers.pull import PullError, read_key
from launcher.containers.registry import NGC_USER, Credentials
from launcher.containers.runtime import Kind, Runtime
from tests.containers.registry_server import USER, Registry
from tests.containers.test_pull import files, get


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "it asks for a key, and none was given"),
        (Credentials(user=USER, password="wrong"), "the key is not accepted"),
    ],
)
@pytest.mark.parametrize("authentication", ["basic", "bearer"])
def test_a_private_image_without_its_key_is_refused_before_any_client_runs(
    authentication: str, key: Credentials | None, says: str, tmp_path: Path
) -> None:
    with Registry("private", authentication=authentication) as registry, pytest.raises(PullError, match=says):
        get(registry, Runtime(kind="apptainer", command=("/no/such/client",)), tmp_path / "cache", credentials=key)
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


def test_there_is_no_pull_of_a_file_or_without_a_runtime_that_pulls(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a file or folder; there is nothing to fetch"):
        get("/a/b.sif", NOBODY, tmp_path)
    kinds: dict[Kind, str] = {"docker": "say docker pull docker.io/library/python:latest", "pyxis": "pyxis needs"}
    for kind, instead in kinds.items():
        with pytest.raises(SettingsError, match=f"image pull is for container=apptainer; {instead}"):
            get("python", Runtime(kind=kind), tmp_path)


def test_a_key_is_read_from_a_file_that_only_its_owner_may_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("nvapi-123\n")
    path.chmod(0o600)
    assert read_key(path) == Credentials(user=NGC_USER, password="nvapi-123")
    path.write_text("mei:pass:word\n")
    assert read_key(path) == Credentials(user="mei", password="pass:word")
    assert "pass" not in repr(read_key(path))
    path.chmod(0o640)
    with pytest.raises(SettingsError, match=r"can be read by others; run chmod 600"):
        read_key(path)
    with pytest.raises(SettingsError, match="No such file"):
        read_key(tmp_path / "none")
