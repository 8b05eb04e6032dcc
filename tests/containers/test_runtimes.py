"""What every runtime is told, byte for byte."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from launcher.containers.description import Container, Mount
from launcher.containers.runtimes import wrap
from launcher.containers.words import to_bash
from tests import golden
from tests.containers.samples import DOCKER, FULL, IMAGES, RUNTIMES

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
    golden.check(GOLDEN / f"{runtime}.sh", "\n".join(lines) + "\n")


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
