"""Training in the testbed's containers, for real: nothing of the launcher is in the image."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors import stopping
from launcher.executors.slurm.jobs import job_of
from launcher.probe.slurm_commands import call
from launcher.runs import store
from launcher.runs.schema import Submission
from launcher.runs.store import Run
from launcher.script import telemetry
from tests.launcher.contained.conftest import started, until
from tests.launcher.real_scripts import ENDLESS, SCRIPTS, copied, goes_on, printed, result
from tests.testbed.facts import Testbed


def words(bed: Testbed, runtime: str) -> tuple[str, ...]:
    image = bed.images["torch"]
    if runtime == "docker":
        return ("container=docker", f"image={image.docker}", "container.limits=null")
    return (f"container={runtime}", f"image={image.sif}")


@pytest.mark.parametrize("runtime", ["docker", "apptainer"])
def test_a_run_in_a_container_is_proved_and_its_files_are_the_users(bed: Testbed, tmp_path: Path, runtime: str) -> None:
    secret = tmp_path / "key"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    extra = (f"secrets.API_KEY={secret}", "env.V=1.10, $(id)")
    assert main(["amp=o2", "batch=64", "steps=4", *words(bed, runtime), *extra, f"run_root={tmp_path}/runs"]) == 0
    folder = started(tmp_path / "runs")
    result = json.loads((folder / "result.json").read_text())
    assert result["observed"]["verdict"] == "proved"
    assert result["digests"]["image"].startswith("sha256:" if runtime == "docker" else "/")
    assert len(telemetry.read(folder).hosts) == 1
    for path in folder.rglob("*"):
        assert path.stat().st_uid == os.getuid()
        assert path.is_dir() or b"hunter2" not in path.read_bytes(), path


READS = """\
import pathlib
print("read", pathlib.Path("data/table").read_text())
pathlib.Path("out").write_text("mine")
try:
    pathlib.Path("data/table").write_text("changed")
except OSError as error:
    print("refused", error.strerror)
"""


@pytest.mark.parametrize(("runtime", "bare"), [("docker", "true"), ("apptainer", "false")])
def test_a_script_in_its_own_folder_reads_its_inputs_and_cannot_change_them(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str, bare: str
) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "table").write_text("a table")
    project = tmp_path / "project"
    project.mkdir()
    (project / "reads.py").write_text(READS)
    (project / "data").symlink_to(tmp_path / "sets")
    monkeypatch.chdir(project)
    script = ("recipe=script", "script=reads.py", "amp=o0", "require_proof=false", f"train.bare={bare}")
    inputs = ("workdir=run", "script.inputs=[data]")
    assert main([*script, *inputs, *words(bed, runtime), f"run_root={tmp_path}/runs"]) == 0
    folder = started(tmp_path / "runs")
    printed = (folder / "attempts/1/stdout.log").read_text()
    assert "read a table" in printed and "refused Read-only file system" in printed
    assert (folder / "work" / "out").read_text() == "mine"
    assert (tmp_path / "sets" / "table").read_text() == "a table"


SAVES = """\
import os, pathlib, signal, sys, time
def save(*_):
    import plistlib  # of the image, whose file system has to be there still
    folder = pathlib.Path(os.environ["LAUNCHER_CHECKPOINT_DIR"])
    folder.joinpath("saved").write_bytes(plistlib.dumps({"attempt": os.environ["LAUNCHER_ATTEMPT"]}))
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(300)
"""


def test_a_bare_script_that_is_cancelled_saves_in_its_container(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saves.py").write_text(SAVES)
    monkeypatch.chdir(tmp_path)
    script = ("recipe=script", "script=saves.py", "amp=o0", "require_proof=false", "train.bare=true", "workdir=run")
    assert main([*script, *words(bed, "apptainer"), f"run_root={tmp_path}/runs", "detach=true"]) == 0
    folder = started(tmp_path / "runs")
    log = folder / "attempts/1/stdout.log"
    until(lambda: log.exists() and "begun" in log.read_text())
    ((seen, why_not),) = stopping.cancel([Run(str(folder.parent), folder.name)])
    assert (seen.state.name, seen.state.reason, seen.state.exit_code, why_not) == ("cancelled", "on request", 0, "")
    assert b"attempt" in (folder / "checkpoints/saved").read_bytes()


def test_each_run_has_an_empty_folder_of_its_own_where_a_mount_asks_for_it(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keeps.py").write_text("open('/mnt/results', 'a').write('once')")
    monkeypatch.chdir(tmp_path)
    script = ("recipe=script", "script=keeps.py", "amp=o0", "require_proof=false", "train.bare=true", "workdir=run")
    mounted = (*words(bed, "docker"), f"run_root={tmp_path}/runs", "mounts=[run:/mnt]")
    assert [main([*script, *mounted]) for _ in range(2)] == [0, 0]
    assert [path.read_text() for path in (tmp_path / "runs").glob("*/checkpoints/results")] == ["once", "once"]


def test_a_time_limit_saves_inside_a_sif_which_keeps_its_file_system(bed: Testbed, tmp_path: Path) -> None:
    asked = ("cluster=slurm", "gpus=0", "amp=o1", "batch=64", "epochs=40", "checkpoint.every=0")
    assert main([*asked, *words(bed, "apptainer"), f"run_root={tmp_path}/runs"]) == 0
    folder = started(tmp_path / "runs")
    until(lambda: (folder / "metrics.jsonl").exists() and '"step": 2' in (folder / "metrics.jsonl").read_text())
    job = job_of(store.read(Submission, folder / "submission.json"))
    assert job is not None
    call(["scancel", "--batch", "--signal=USR1", job])
    until(lambda: store.read_or_empty(folder / "status.json").get("state") == "requeued")
    marker = json.loads((folder / "attempts" / "1" / "stopped.json").read_text())
    assert (folder / marker["checkpoint"]).is_dir()
    assert "not connected" not in (folder / "attempts" / "1" / "stderr.log").read_text()
    ((_, why),) = stopping.cancel([Run(str(folder.parent), folder.name)], now=True)
    assert why == ""


@pytest.mark.slow
def test_a_script_in_a_container_saves_when_it_is_cancelled_and_goes_on(
    bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied(tmp_path))
    root = f"run_root={tmp_path}/runs"
    asked = ("plain.py", "amp=o1", *words(bed, "docker"), "env.OMP_NUM_THREADS=1", root, "detach=true")
    assert main([*asked, "--", f"--steps={ENDLESS}"]) == 0
    folder = started(tmp_path / "runs")
    until(lambda: len(printed(folder)) >= 5)
    assert main(["cancel", folder.name, root]) == 0
    further = SCRIPTS["torch"].further(printed(folder)[-1][0])
    assert main(["resume", folder.name, root, f"script.resume_arguments={further}"]) == 0
    assert goes_on(folder)
    end = result(folder)
    assert (end["status"], end["observed"]["verdict"], end["attempts"]) == ("done", "proved", 2)


def test_in_an_image_without_torchao_a_run_ends_at_once_and_names_it(
    bed: Testbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = ("recipe=gpt", "amp=fp8", "steps=2", *words(bed, "apptainer"), f"run_root={tmp_path}/runs")
    assert main(["plan", *job]) == 0
    assert "not checked: torchao" in " ".join(capsys.readouterr().out.split())
    assert main(job) == 1
    assert "amp.gemm=fp8-tensorwise needs torchao, which can't be imported" in capsys.readouterr().out
