"""The devices of a real Slurm job, from its GRES to what the job in the container sees."""

from __future__ import annotations

import dataclasses
import json
import subprocess

import pytest

from launcher.containers.runtime import Runtime
from tests.containers.readers import devices
from tests.containers.real import APPTAINER, Place

pytestmark = pytest.mark.testbed

RECORD = """#!/usr/bin/env python3
import json, sys
if sys.argv[1] == "run":
    json.dump(sys.argv, open({path!r}, "w"))
"""


def in_job(place: Place, script: str, gpus: int) -> None:
    """Run a script in a job of so many GPUs."""
    path = place.write("job.sh", script)
    argv = ["srun", f"--gres=gpu:{gpus}", "--ntasks=1", "--cpus-per-task=1", "--chdir=/", "bash", str(path)]
    done = subprocess.run(place.testbed.as_user(argv), capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("gpus", [1, 3])
def test_a_job_sees_as_many_gpus_as_it_has_in_apptainer(gpus: int, place: Place) -> None:
    container = place.container(place.testbed.images["python"].sandbox, devices="job")
    # The job's own devices are in its environment already; nothing sets them for it here.
    in_job(place, place.script(container, APPTAINER), gpus)
    seen = json.loads((place.run / "probe.json").read_text())["env"]["CUDA_VISIBLE_DEVICES"].split(",")
    assert len(set(seen)) == gpus


@pytest.mark.parametrize("kind", ["docker", "podman"])
def test_an_engine_is_given_the_jobs_own_devices(kind: str, place: Place) -> None:
    client = place.write("client", RECORD.format(path=str(place.run / "argv.json")), mode=0o755)
    runtime = Runtime(kind="docker" if kind == "docker" else "podman", command=(str(client),))
    container = dataclasses.replace(place.container("image"), devices="job")
    text = place.script(container, runtime).replace("set -u", "set -u\nenv >" + str(place.run / "env"))
    in_job(place, text, 2)
    given_to_engine = devices(json.loads((place.run / "argv.json").read_text())).split(",")
    environment = dict(pair.partition("=")[::2] for pair in (place.run / "env").read_text().splitlines())
    job = environment.get("SLURM_STEP_GPUS") or environment["SLURM_JOB_GPUS"]
    assert given_to_engine == job.split(",")
    assert len(set(given_to_engine)) == 2
