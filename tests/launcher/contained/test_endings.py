"""Docker's containers are the engine's children: however a run ends, its container has to end with it. All real."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors import backends, execute, stopping
from launcher.executors.slurm.jobs import job_of
from launcher.probe.slurm_commands import call
from launcher.runs import processes, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run
from tests.launcher.contained.conftest import started, until
from tests.testbed.facts import Testbed

# It starts in no time, and doesn't mind being told to end. Its second start is a short one.
STUBBORN = """#!/bin/sh
trap "" TERM
for word; do :; done
run=${word#run=}
if [ -e "$run/started" ]; then
  echo "{\\"attempts\\": $LAUNCHER_ATTEMPT}" >"$run/result.json"
  exit 0
fi
touch "$run/started"
sleep 100
"""


def start(bed: Testbed, folder: Path, *words: str) -> Path:
    """The folder of a run whose stubborn program runs in its container."""
    program = folder / "program"
    program.write_text(STUBBORN)
    program.chmod(0o755)
    image = (f"image={bed.images['python'].docker}", f"python={program}", f"mounts=[{program}:{program}:ro]")
    asked = ("container=docker", "container.limits=null", *image, f"run_root={folder}/runs", "detach=true", *words)
    assert main(asked) == 0
    run = started(folder / "runs")
    until(lambda: (run / "started").exists())
    assert containers(run)
    return run


def containers(folder: Path) -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", f"--filter=name={folder.name}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def client(folder: Path) -> processes.Process:
    """The `docker run` of a run."""
    identity = processes.from_json(status(folder)["process"])
    assert identity is not None
    of_run = processes.processes_of([processes.Target(identity, folder.name)])[0]
    (process,) = (p for p in of_run if Path(f"/proc/{p.pid}/cmdline").read_bytes().startswith(b"docker\0run\0"))
    return process


def status(folder: Path) -> dict[str, object]:
    return store.read_or_empty(folder / "status.json")


def test_a_killed_client_takes_its_container_with_it(bed: Testbed, tmp_path: Path) -> None:
    folder = start(bed, tmp_path)
    os.kill(client(folder).pid, signal.SIGKILL)
    until(lambda: status(folder)["state"] != "running")
    assert status(folder)["reason"] == "the trainer was killed by signal 9"
    assert containers(folder) == []


def test_a_run_that_is_killed_on_request_leaves_no_container(bed: Testbed, tmp_path: Path) -> None:
    folder = start(bed, tmp_path)
    assert stopping.kill_all([folder]) == {}
    until(lambda: not containers(folder))
    (seen,) = backends.states_of([Run(str(folder.parent), folder.name)])
    assert seen.state.name == "cancelled"


def test_a_container_of_a_killed_script_is_removed_before_the_next_attempt_and_after_it(
    bed: Testbed, tmp_path: Path
) -> None:
    folder = start(bed, tmp_path)
    os.killpg(client(folder).session, signal.SIGKILL)
    assert containers(folder)
    assert subprocess.run(["bash", str(folder / "run.sh")], env=execute.environment()).returncode == 0
    assert (status(folder)["state"], status(folder)["attempt"]) == ("done", 2)
    assert containers(folder) == []


def in_slurm(bed: Testbed, folder: Path) -> tuple[Path, str]:
    run = start(bed, folder, "cluster=slurm", "gpus=0")
    job = job_of(store.read(Submission, run / "submission.json"))
    assert job is not None
    return run, job


def test_slurm_ends_a_container_whose_trainer_does_not_mind_term(bed: Testbed, tmp_path: Path) -> None:
    folder, _ = in_slurm(bed, tmp_path)
    ((_, why),) = stopping.cancel([Run(str(folder.parent), folder.name)], now=True)
    assert why == ""
    until(lambda: status(folder)["state"] == "cancelled")
    assert containers(folder) == []


@pytest.mark.parametrize("argv", [("scontrol", "requeue"), ("scancel", "--signal=KILL")], ids=["requeue", "kill"])
def test_a_job_that_slurm_takes_away_leaves_no_container(argv: Sequence[str], bed: Testbed, tmp_path: Path) -> None:
    folder, job = in_slurm(bed, tmp_path)
    try:
        assert call([*argv, job]).returncode == 0
        until(lambda: not containers(folder))
    finally:
        call(["scancel", job])
