"""Pyxis, with a stand-in for srun at the process boundary and everything else real."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.containers import preflight
from launcher.containers.description import Container, Mount, User
from launcher.containers.runtime import Runtime
from launcher.containers.runtimes import wrap
from launcher.containers.words import EnvArg
from tests.containers.hostile import LONG, TABLE
from tests.containers.real import PROBE, PYTHON, script

SRUN = Runtime(kind="pyxis", command=(str(Path(__file__).with_name("fake_srun.py")), "--ntasks=1"))
LATE = {"LAUNCHER_ATTEMPT": "3", "CUDA_VISIBLE_DEVICES": "1"}


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(
        image="nvcr.io#nvidia/pytorch:25.06-py3",
        argv=(
            PYTHON,
            str(PROBE),
            str(tmp_path / "probe.json"),
            "37",
            *TABLE,
            LONG,
            EnvArg("LAUNCHER_ATTEMPT", "attempt="),
        ),
        environment={**{f"V{index}": text for index, text in enumerate(TABLE)}, "BOTH": "job", "LONG": LONG},
        passed=("LAUNCHER_ATTEMPT",),
        mounts=(Mount(source=str(tmp_path), target=str(tmp_path)),),
        workdir=str(tmp_path),
        devices="job",
        user=User(uid=os.getuid(), gid=os.getgid(), name="mei"),
        cache=str(tmp_path / "cache"),
        name="unused",
    )


def probe(container: Container, tmp_path: Path) -> dict[str, Any]:
    preflight.check_container(container, SRUN)
    text = script(wrap(container, SRUN), container, SRUN, LATE)
    (tmp_path / "job.sh").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["bash", str(tmp_path / "job.sh")],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (tmp_path / "probe.json").exists(), done.stderr
    seen: dict[str, Any] = json.loads((tmp_path / "probe.json").read_text())
    return seen | {"exit_code": done.returncode}


def test_everything_arrives_byte_for_byte(container: Container, tmp_path: Path) -> None:
    seen = probe(container, tmp_path)
    assert seen["argv"] == [*TABLE, LONG, "attempt=3"]
    assert {name: seen["env"].get(name) for name in container.environment} == container.environment
    assert (seen["exit_code"], seen["cwd"]) == (37, str(tmp_path))


def test_the_jobs_environment_wins_over_the_images(container: Container, tmp_path: Path) -> None:
    seen = probe(container, tmp_path)
    assert (seen["env"]["BOTH"], seen["env"]["FROM_IMAGE"]) == ("job", "image")
    assert (seen["env"]["LANG"], seen["env"]["LAUNCHER_ATTEMPT"]) == ("C.UTF-8", "3")
    assert (seen["home"], seen["user"], seen["user_site"]) == (container.home, "mei", False)
    assert (seen["env"]["CUDA_VISIBLE_DEVICES"], seen["env"]["NVIDIA_VISIBLE_DEVICES"]) == ("1", "all")


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"])
def test_what_would_change_srun_itself_reaches_only_the_job(name: str, container: Container, tmp_path: Path) -> None:
    container = dataclasses.replace(container, environment={name: "/nowhere/in the job"})
    wrapped = wrap(container, SRUN)
    assert name not in wrapped.environment
    assert probe(container, tmp_path)["env"][name] == "/nowhere/in the job"


def test_a_secret_is_a_file_mounted_and_read_inside(container: Container, tmp_path: Path) -> None:
    container = dataclasses.replace(container, secrets={"API_KEY": str(tmp_path / "key")})
    (tmp_path / "key").write_text("s3cret")
    words = wrap(container, SRUN).argv
    assert any(isinstance(word, str) and f"{tmp_path}/key:/run/launcher/API_KEY:ro" in word for word in words)
    assert "s3cret" not in str(words)
