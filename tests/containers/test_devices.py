"""Which GPUs a job sees: every runtime with every way of naming them."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from launcher.containers.description import Devices
from launcher.containers.devices import JOB_GPUS, VARIABLE, needs_job_gpus
from launcher.containers.runtimes import wrap
from launcher.containers.words import to_bash
from tests.containers.readers import devices as given
from tests.containers.readers import fill, variable
from tests.containers.samples import FULL, IMAGES, RUNTIMES

# What Slurm sets in a job that got the node's GPUs 2 and 3 under a cgroup, where they count from 0.
JOB = {
    "SLURM_NODEID": "0",
    "LAUNCHER_ATTEMPT": "1",
    "MASTER_ADDR": "n1",
    "CUDA_VISIBLE_DEVICES": "0,1",
    VARIABLE: "2,3",
}
CUDA, ALL = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"

# devices, runtime -> devices given to the engine, CUDA_VISIBLE_DEVICES, NVIDIA_VISIBLE_DEVICES, whether --nv
TABLE: list[tuple[Devices, str, str, str | None, str | None, bool]] = [
    ((), "docker", "", None, "void", False),
    ((), "podman", "", None, "void", False),
    ((), "apptainer", "", "", None, False),
    ((), "pyxis", "", "", "void", False),
    (("1",), "docker", "1", None, None, False),
    (("1",), "podman", "1", None, None, False),
    (("1",), "apptainer", "", "1", None, True),
    (("0", "1", "3"), "docker", "0,1,3", None, None, False),
    (("0", "1", "3"), "podman", "0,1,3", None, None, False),
    (("0", "1", "3"), "apptainer", "", "0,1,3", None, True),
    # The order is the user's: GPU 10 is the job's first.
    (("10", "2"), "docker", "10,2", "1,0", None, False),
    (("10", "2"), "podman", "10,2", "1,0", None, False),
    (("10", "2"), "apptainer", "", "10,2", None, True),
    (("GPU-b", "GPU-a"), "docker", "GPU-b,GPU-a", "GPU-b,GPU-a", None, False),
    (("GPU-b", "GPU-a"), "apptainer", "", "GPU-b,GPU-a", None, True),
    (("GPU-b",), "docker", "GPU-b", None, None, False),
    ("job", "docker", "2,3", None, None, False),
    ("job", "podman", "2,3", None, None, False),
    ("job", "apptainer", "", "0,1", None, True),
    ("job", "pyxis", "", "0,1", "all", False),
]


@pytest.mark.parametrize(("devices", "runtime", "engine", "cuda", "nvidia", "nv"), TABLE)
def test_what_the_job_sees(
    devices: Devices, runtime: str, engine: str, cuda: str | None, nvidia: str | None, nv: bool
) -> None:
    container = dataclasses.replace(FULL, image=IMAGES[runtime], devices=devices, secrets={})
    wrapped = wrap(container, RUNTIMES[runtime])
    argv = fill(wrapped.argv, JOB)
    process = JOB | dict(zip(wrapped.environment, fill(wrapped.environment.values(), JOB), strict=True))
    assert (given(argv), variable(CUDA, argv, process), variable(ALL, argv, process)) == (engine, cuda, nvidia)
    assert ("--nv" in argv) == nv
    assert needs_job_gpus(devices, runtime) == (VARIABLE in " ".join(map(to_bash, wrapped.argv)))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_machine_without_gpus_gets_no_gpu_flags(runtime: str) -> None:
    kind = RUNTIMES[runtime].kind
    wrapped = wrap(dataclasses.replace(FULL, image=IMAGES[kind], devices=None), RUNTIMES[runtime])
    words = " ".join(map(to_bash, wrapped.argv)) + " ".join(wrapped.environment)
    assert not [flag for flag in ("--gpus", "--nv", "nvidia.com", CUDA, ALL) if flag in words]


@pytest.mark.parametrize("runtime", ["docker", "podman"])
@pytest.mark.parametrize(
    ("step", "job", "seen"), [("2,3", "0,1,2,3", "2,3"), ("", "1", "1"), (None, "GPU-1a,GPU-2b", "GPU-1a,GPU-2b")]
)
def test_the_jobs_own_gpus_are_found_by_the_script(runtime: str, step: str | None, job: str, seen: str) -> None:
    container = dataclasses.replace(FULL, image=IMAGES[runtime], devices="job", secrets={}, limits={})
    text = f"set -u\n{JOB_GPUS}\nprintf '%s\\0' " + " ".join(map(to_bash, wrap(container, RUNTIMES[runtime]).argv))
    environment = {"SLURM_JOB_GPUS": job, "SLURM_NODEID": "0"} | ({} if step is None else {"SLURM_STEP_GPUS": step})
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=True)
    assert given(done.stdout.split("\0")) == seen


@pytest.mark.parametrize("value", [None, "", "0,", "$(id)", "0 1", "all;id", "*"])
def test_a_job_whose_gpus_nobody_names_does_not_start(value: str | None) -> None:
    environment = {} if value is None else {"SLURM_JOB_GPUS": value}
    argv = ["bash", "-c", f"set -u\n{JOB_GPUS}\necho on"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "names no GPUs of this job" in done.stderr
