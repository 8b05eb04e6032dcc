"""A job's variables and secrets here, on Slurm and in containers, as a real job finds them, and where else they are.

Over SSH, and in podman, `tests/launcher/ssh/test_containers.py` holds the same.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors.slurm.jobs import job_of
from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.schema import Submission
from tests.launcher.contained.conftest import started, until
from tests.testbed.facts import Testbed

PROGRAM = """#!/bin/sh
[ "$1" != -c ] || exec {python} "$@" # the launcher asks which version this is
for word; do :; done
run=${{word#run=}}
cat /proc/self/environ >"$run/variables.new"
mv "$run/variables.new" "$run/variables"
until [ -e "$run/enough" ]; do sleep 0.1; done
"""
LARGEST = 4_000_000  # of a server's log, the end


@pytest.mark.parametrize("kind", ["none", "docker", "apptainer"])
@pytest.mark.parametrize("where", ["here", "slurm"])
def test_a_job_gets_the_same_variables_everywhere_and_a_secret_is_in_its_environment_alone(
    where: str,
    kind: str,
    bed: Testbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    flag, token, key = f"{uuid.uuid4().hex} 'x' $(id) \"y\"\n`z` é,a=b", uuid.uuid4().hex, uuid.uuid4().hex
    shell = {"MY_FLAG": flag, "MY_TOKEN": token, "NOISE": "x", "LD_LIBRARY_PATH": "/opt/of-this-shell"}
    standard = {"TZ": "Asia/Taipei", "no_proxy": "a,b", "HF_HOME": "/scratch/hf"}
    for name, value in {**shell, **standard}.items():
        monkeypatch.setenv(name, value)
    program, key_file = tmp_path / "program", tmp_path / "key"
    program.write_text(PROGRAM.format(python=bed.python))
    program.chmod(0o755)
    key_file.write_text(key)
    key_file.chmod(0o600)
    words = [f"python={program}", f"run_root={tmp_path}/runs", "env.MY_FLAG", "secrets.MY_TOKEN", "env.TYPED=1"]
    words += [f"secrets.API_KEY={key_file}", "telemetry.every=0"]
    words += ["cluster=slurm", "gpus=0"] if where == "slurm" else []
    if kind != "none":
        image = bed.images["python"]
        named = image.docker if kind == "docker" else image.sif
        words += [f"container={kind}", f"image={named}", "container.limits=null", f"mounts=['{program}:{program}:ro']"]
    assert main(["plan", *words]) == main(["plan", "--json", *words]) == 0
    assert main([*words, "detach=true"]) == 0
    folder = started(tmp_path / "runs")
    until(
        lambda: (folder / "variables").exists() or store.read_or_empty(folder / "status.json").get("state") == "failed"
    )
    job = dict(pair.split("=", 1) for pair in (folder / "variables").read_text().split("\0") if "=" in pair)
    (folder / "variables").unlink()
    assert [Path(name).name for name, text in files(folder) if flag[:32].encode() in text] == [".environment"]
    assert (folder / ".environment").stat().st_mode & 0o777 == 0o600
    number = job_of(store.read(Submission, folder / "submission.json")) if where == "slurm" else None
    searched = [*processes(), *(containers(folder) if kind == "docker" else [])]
    searched += slurm(bed, number) if number else []
    (folder / "enough").touch()
    until(lambda: store.read_or_empty(folder / "status.json").get("ended"))  # failed, since it leaves no result
    expected = {
        "MY_FLAG": flag,
        "MY_TOKEN": token,
        "API_KEY": key,
        "TYPED": "1",
        "TZ": "Asia/Taipei",
        "no_proxy": "a,b",
    }
    assert {name: job.get(name) for name in expected} == expected
    assert "NOISE" not in job
    assert job.get("HF_HOME") == ("/scratch/hf" if kind == "none" else None)
    assert (job.get("LD_LIBRARY_PATH") == "/opt/of-this-shell") is (where == "here" and kind == "none")
    until(lambda: not (folder / ".secrets").exists())
    for argv in (["ls", folder.name], ["ls", folder.name, "--json"], ["logs", folder.name]):
        main(argv)
    screen = "".join(capfd.readouterr())
    assert "secrets.API_KEY" in screen
    searched += [("the screen", screen.encode()), *files(tmp_path / "runs"), *files(Path(bed.folder, "logs"))]
    searched += slurm(bed, number) if number else []
    assert len(searched) > 50
    assert [place for place, text in searched if key.encode() in text or token.encode() in text] == []


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
