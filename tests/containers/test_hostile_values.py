"""Every string that a person can set arrives byte for byte in bash, or is refused by name, for every runtime.

`test_equivalence` puts the same strings through the real runtimes, and `test_pyxis` through a stand-in for srun.
"""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from containers import preflight
from containers.apptainer import LOSING
from containers.description import Mount
from containers.runtimes import wrap
from containers.words import to_bash
from recipes.typed import SettingsError
from tests.containers.hostile import TABLE
from tests.containers.readers import fill
from tests.containers.samples import FULL, IMAGES, RUNTIMES, SINGULARITY_3_8

PLAIN = dataclasses.replace(FULL, argv=("python3",), environment={}, passed=(), secrets={}, mounts=(), limits={})
PROCESS = {"SLURM_NODEID": "0", "LAUNCHER_ATTEMPT": "3", "MASTER_ADDR": "n1", "CUDA_VISIBLE_DEVICES": "0"}
CONTAINERS = [each for each in RUNTIMES if each != "none"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_whole_table_through_one_real_bash(runtime: str) -> None:
    """The script is where quoting happens: bash has to hand on exactly the words that were wrapped."""
    kind = RUNTIMES[runtime].kind
    lost = (LOSING if kind == "apptainer" else "") + ('$`\\"' if RUNTIMES[runtime] == SINGULARITY_3_8 else "")
    texts = [each for each in TABLE if not set(each) & set(lost)]
    container = dataclasses.replace(
        PLAIN,
        image=IMAGES[kind],
        devices="job" if kind == "pyxis" else None,
        argv=("python3", *texts),
        environment={f"V{index}": text for index, text in enumerate(texts)},
    )
    preflight.check(container, RUNTIMES[runtime])
    wrapped = wrap(container, RUNTIMES[runtime])
    lines = ["set -u", *(f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items())]
    lines += [r"printf '%s\0' " + " ".join(map(to_bash, wrapped.argv)), "env -0"]
    done = subprocess.run(
        ["bash"],
        input="\n".join(lines).encode(),
        env={**PROCESS, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    printed = done.stdout.decode().split("\0")
    count = len(fill(wrapped.argv, PROCESS))
    assert printed[:count] == fill(wrapped.argv, PROCESS)
    expected = dict(zip(wrapped.environment, fill(wrapped.environment.values(), PROCESS), strict=True))
    found = dict(each.partition("=")[::2] for each in printed[count:] if each)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("runtime", CONTAINERS)
@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f"])
def test_control_characters_are_refused_by_name(runtime: str, character: str) -> None:
    for container, key in (
        (dataclasses.replace(PLAIN, environment={"VALUE": f"a{character}b"}), "env.VALUE"),
        (dataclasses.replace(PLAIN, argv=("python3", f"a{character}b")), "argv[1]"),
        (dataclasses.replace(PLAIN, mounts=(Mount(source=f"/a{character}", target="/b"),)), "mounts[0]"),
        (dataclasses.replace(PLAIN, workdir=f"/a{character}"), "workdir"),
    ):
        with pytest.raises(SettingsError, match="control character") as error:
            preflight.check(container, RUNTIMES[runtime])
        assert error.value.key == key


@pytest.mark.parametrize("runtime", CONTAINERS)
def test_bytes_that_are_no_text_are_refused_by_name(runtime: str) -> None:
    container = dataclasses.replace(PLAIN, environment={"VALUE": b"\xff".decode(errors="surrogateescape")})
    with pytest.raises(SettingsError, match=r"^env\.VALUE contains bytes that are not UTF-8 text"):
        preflight.check(container, RUNTIMES[runtime])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_linux_cannot_start_is_refused_by_name(runtime: str) -> None:
    runtime_ = RUNTIMES[runtime]
    base = dataclasses.replace(PLAIN, image=IMAGES[runtime_.kind])
    with pytest.raises(SettingsError, match=r"env\.BIG holds 131072 bytes"):
        preflight.check(dataclasses.replace(base, environment={"BIG": "x" * 131072}), runtime_)
    with pytest.raises(SettingsError, match="argument 1 of the job is longer than 128 KiB"):
        preflight.check(dataclasses.replace(base, argv=("python3", "x" * 131072)), runtime_)
    many = {f"V{index}": "x" * 100_000 for index in range(20)}
    with pytest.raises(SettingsError, match="Linux takes about 2 MB"):
        preflight.check(dataclasses.replace(base, environment=many), runtime_)
