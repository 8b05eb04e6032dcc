"""Pulling for real: Apptainer's own client, and a registry on loopback that counts."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.containers.find import installed
from launcher.containers.programs import output
from launcher.containers.pull import Pulled, PullError, pull, stored
from launcher.containers.references import resolve
from launcher.containers.runtime import Runtime
from tests.containers.registry_server import Registry
from tests.testbed.bed import wait_until
from tests.testbed.facts import Testbed

ROOT = Path(__file__).parents[2]
AT_ONCE = 8
"""Tasks that start together."""


@pytest.fixture
def apptainer(testbed: Testbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """Spoken to with a home of the test's own."""
    for name, value in {**testbed.environment, "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "home").mkdir()
    return installed(output)["apptainer"]


@pytest.fixture
def registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    with Registry(f"{request.node.name} {os.getpid()}") as running:
        yield running


def get(image: Registry | str, runtime: Runtime, cache: Path, **more: Any) -> Pulled:
    name = image if isinstance(image, str) else image.name
    return pull(resolve(name), runtime, cache, **{"architecture": "amd64", **more})


PULL = """
import json, sys
from pathlib import Path
from launcher.containers.find import architecture, installed
from launcher.containers.programs import output
from launcher.containers.pull import pull
from launcher.containers.references import resolve
from amp_launcher.typed import plain

name, cache = sys.argv[1:]
pulled = pull(resolve(name), installed(output)["apptainer"], Path(cache), architecture=architecture(output))
print(json.dumps(plain(pulled)))
"""


def start(registry: Registry, cache: Path, **more: Any) -> subprocess.Popen[str]:
    """One pull in a process of its own, which prints its `Pulled`."""
    return subprocess.Popen([sys.executable, "-c", PULL, registry.name, str(cache)], cwd=ROOT, **more)


def files(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name not in ("locks", "names"))


def test_an_image_is_fetched_once_and_known_by_its_digest(
    apptainer: Runtime, registry: Registry, tmp_path: Path
) -> None:
    first = get(registry, apptainer, tmp_path / "cache")
    fetched = registry.blob_fetches
    second = get(registry, apptainer, tmp_path / "cache")
    assert (first.digest, first.fetched) == (registry.digest, True)
    assert second == dataclasses.replace(first, fetched=False)
    assert registry.blob_fetches == fetched > 0
    assert files(tmp_path / "cache") == [f"{registry.digest.replace(':', '-')}.sif"]
    assert Path(first.name).read_bytes()[32:41] == b"SIF_MAGIC"


@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_an_image_of_the_cache_that_broke_off_is_fetched_again(
    kept: int, apptainer: Runtime, registry: Registry, tmp_path: Path
) -> None:
    first = get(registry, apptainer, tmp_path)
    size = os.path.getsize(first.name)
    os.truncate(first.name, kept)
    assert stored(resolve(registry.name), apptainer, tmp_path) == ""
    assert get(registry, apptainer, tmp_path) == first
    assert os.path.getsize(first.name) == size


def test_tasks_that_start_together_fetch_once(apptainer: Runtime, registry: Registry, tmp_path: Path) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pullers = [start(registry, tmp_path / "cache", **pipes) for _ in range(AT_ONCE)]
    answers = [puller.communicate() for puller in pullers]
    assert [puller.returncode for puller in pullers] == [0] * AT_ONCE, answers
    pulled = [json.loads(out) for out, _ in answers]
    assert sum(image["fetched"] for image in pulled) == 1
    assert len({(image["name"], image["digest"]) for image in pulled}) == 1
    assert registry.blob_fetches == len(registry.blobs)


def nobody_holds(lock: Path) -> bool:
    """A client that was killed takes a moment to go."""
    with open(lock) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@pytest.mark.parametrize("whole_group", [True, False], ids=["with-its-client", "alone"])
def test_a_killed_pull_leaves_nothing_half_made(whole_group: bool, apptainer: Runtime, tmp_path: Path) -> None:
    """Killed while its client fetches; killed alone, its client goes on for a while and must not be in the way."""
    cache = tmp_path / "cache"
    with Registry(f"killed {os.getpid()} {whole_group}", slow=2.0) as registry:
        killed = start(registry, cache, stderr=subprocess.DEVNULL, start_new_session=True)
        assert wait_until(lambda: registry.blob_fetches, 120)
        (os.killpg if whole_group else os.kill)(killed.pid, signal.SIGKILL)
        killed.wait()
        assert not whole_group or wait_until(lambda: nobody_holds(next((cache / "locks").iterdir())), 120)
        assert not list(cache.glob("*.sif"))
        assert not stored(resolve(registry.name), apptainer, cache)
        registry.slow = 0.0
        lines: list[str] = []
        again = get(registry, apptainer, cache, say=lines.append)
    assert again.fetched
    # A client that lives on holds the lock as well, so that two never write into one folder.
    assert any(line.startswith("waiting for another pull") for line in lines) != whole_group
    assert files(cache) == [Path(again.name).name]
    assert not list(cache.glob(".part*"))


def test_a_failed_fetch_leaves_nothing(apptainer: Runtime, registry: Registry, tmp_path: Path) -> None:
    registry.blobs.clear()
    with pytest.raises(PullError, match=rf"apptainer could not fetch {registry.name}:latest \(exit code"):
        get(registry, apptainer, tmp_path / "cache")
    assert files(tmp_path / "cache") == []


@pytest.mark.testbed
def test_a_tag_that_moved_is_fetched_anew_and_a_digest_stays_what_it_is(apptainer: Runtime, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Registry(f"first {os.getpid()}") as registry:
        image = resolve(registry.name)
        first = get(registry, apptainer, cache)
        assert stored(image, apptainer, cache) == first.name
        registry.manifests["latest"] = registry.manifests[registry._fill(f"second {os.getpid()}", "amd64", False, 0)]
        second = get(registry, apptainer, cache)
        assert second.fetched and second.digest != first.digest
        assert stored(image, apptainer, cache) == second.name
        pinned = resolve(f"{registry.name}@{first.digest}")
        asked = len(registry.requests)
        assert get(pinned.given, apptainer, cache) == dataclasses.replace(first, fetched=False)
        assert len(registry.requests) == asked, "a digest says what it is without asking"
        assert stored(pinned, apptainer, cache) == first.name
