"""A secret reaches the trainer's environment and stands nowhere else: what can be searched is searched, while it runs
and afterwards, with and without a container, here and on Slurm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors.slurm.jobs import job_of
from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.schema import Submission
from tests.launcher.contained.places import started, until
from tests.testbed.facts import Testbed

SECRET = "hush-0f8fad5b-d9cb-469f-a165-70867728950e"
# Tells how long its secret is, and ends when it is told to.
PROGRAM = """#!/bin/sh
[ "$1" != -c ] || exec {python} "$@" # the launcher asks which version this is
for word; do :; done
run=${{word#run=}}
echo "${{#API_KEY}}" >"$run/length.new"
mv "$run/length.new" "$run/length"
until [ -e "$run/enough" ]; do sleep 0.1; done
"""
LARGEST = 4_000_000  # of a server's log, the end


@pytest.fixture
def words(bed: Testbed, tmp_path: Path) -> list[str]:
    program, key = tmp_path / "program", tmp_path / "key"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    key.write_text(SECRET)
    key.chmod(0o600)
    return [f"python={program}", f"secrets.API_KEY={key}", f"run_root={tmp_path}/runs"]


def in_container(kind: str, bed: Testbed, tmp_path: Path) -> list[str]:
    if kind == "none":
        return []
    image = bed.images["python"]
    program = tmp_path / "program"
    words = [f"container={kind}", f"image={image.docker if kind == 'docker' else image.sif}", "container.limits=null"]
    return [*words, f"mounts=['{program}:{program}:ro']"]


@pytest.mark.parametrize("kind", ["none", "docker", "apptainer"])
@pytest.mark.parametrize("where", ["here", "slurm"])
def test_a_secret_is_nowhere_but_in_its_file_and_the_trainers_environment(
    where: str, kind: str, bed: Testbed, words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words += ["cluster=slurm", "gpus=0"] if where == "slurm" else []
    words += in_container(kind, bed, tmp_path)
    assert main(["plan", *words]) == main(["plan", "--json", *words]) == 0
    assert main([*words, "detach=true"]) == 0
    folder = started(tmp_path / "runs")
    until(lambda: (folder / "length").exists())
    assert (folder / "length").read_text() == f"{len(SECRET)}\n"
    job = job_of(store.read(Submission, folder / "submission.json")) if where == "slurm" else None
    searched = [*processes(), *(containers(folder) if kind == "docker" else []), *(slurm(bed, job) if job else [])]
    (folder / "enough").touch()
    until(lambda: store.read_if_whole(folder / "status.json").get("ended"))  # failed, since it leaves no result
    for argv in (["ls", folder.name], ["ls", folder.name, "--json"], ["logs", folder.name]):
        main(argv)
    screen = "".join(capfd.readouterr())
    assert "secrets.API_KEY" in screen
    searched += [("the screen", screen.encode()), *files(tmp_path / "runs"), *files(Path(bed.folder, "logs"))]
    searched += slurm(bed, job) if job else []
    assert len(searched) > 50
    assert [where for where, text in searched if SECRET.encode() in text] == []


def processes() -> Iterator[tuple[str, bytes]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield str(path), path.read_bytes()
        except OSError:  # it has ended since
            continue


def containers(folder: Path) -> Iterator[tuple[str, bytes]]:
    done = subprocess.run(["docker", "inspect", folder.name], capture_output=True, check=True)
    assert b"API_KEY" in done.stdout
    yield "docker inspect", done.stdout


def slurm(bed: Testbed, job: str) -> Iterator[tuple[str, bytes]]:
    """What Slurm says of the job, and what lies in its controller's and its nodes' folders."""
    for argv in (
        ["scontrol", "show", "--details", "job", job],
        ["scontrol", "write", "batch_script", job, "-"],
        ["sacct", "--jobs", job, "--format=ALL", "--parsable"],
    ):
        yield " ".join(argv), call(argv).stdout.encode()
    state = list(files(Path(bed.slurm.conf).parent))
    assert any("job." in name for name, _ in state), "the controller keeps the scripts of its jobs"
    yield from state


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield str(path), path.read_bytes()[-LARGEST:]
        except OSError:  # gone since, or a socket
            continue
