"""The same container reached in other ways: in a Slurm job, and over SSH. What arrives is what arrives here."""

from __future__ import annotations

import json
import subprocess

import pytest

from containers.runtime import Runtime
from containers.words import EnvArg
from tests.containers.hostile import LONG, VALUES
from tests.containers.real import APPTAINER, EVERY, Place, image_of
from tests.testbed.facts import Testbed

pytestmark = pytest.mark.testbed

WORDS = tuple(VALUES.values())


@EVERY
@pytest.mark.parametrize("way", ["slurm", "ssh"])
def test_everything_arrives_byte_for_byte(way: str, runtime: Runtime, place: Place, testbed: Testbed) -> None:
    container = place.container(
        testbed.images["python"].sif if runtime is APPTAINER else image_of(runtime, testbed),
        words=(*WORDS, LONG, EnvArg("LAUNCHER_ATTEMPT", "attempt=")),
        environment={**VALUES, "LONG": LONG},
        passed=("LAUNCHER_ATTEMPT",),
    )
    path = place.write("job.sh", place.script(container, runtime, {"LAUNCHER_ATTEMPT": "2"}))
    if way == "slurm":
        argv = testbed.as_user(["srun", "--ntasks=1", "--cpus-per-task=1", "--chdir=/", "bash", str(path)])
    else:
        session = " ".join(f"{name}={value}" for name, value in testbed.environment.items())
        argv = ["ssh", "-F", testbed.ssh.config, "testbed", f"env {session} bash {path}"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, cwd="/")
    assert done.returncode == 0, done.stderr
    found = json.loads((place.run / "probe.json").read_text())
    assert found["argv"] == [*WORDS, LONG, "attempt=2"]
    assert {name: found["env"].get(name) for name in container.environment} == container.environment
    assert (found["cwd"], found["uid"], found["env"]["LAUNCHER_ATTEMPT"]) == (str(place.code), testbed.user.uid, "2")
