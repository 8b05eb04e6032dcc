"""An image that a Slurm job of its own fetches before the run: the real Slurm, and a registry on loopback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors.slurm.jobs import job_of
from launcher.probe.slurm_commands import call
from launcher.runs import selection, store
from launcher.runs.schema import Submission
from tests.containers.registry_server import Registry
from tests.launcher.contained.conftest import started, until
from tests.testbed.facts import Testbed

PROGRAM = """#!/bin/sh
echo it ran in the image
for word; do :; done
case $word in run=*) echo '{"attempts": 1}' >"${word#run=}/result.json" ;; esac
"""


def words(registry: Registry, folder: Path) -> list[str]:
    program = folder / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    # The registry's image is empty, so the host's programs are lent to it.
    lent = ("/usr", "/bin", "/lib", "/lib64", program)
    mounts = ",".join(f"'{path}:{path}:ro'" for path in lent)
    image = ["container=apptainer", f"image={registry.name}", f"container.cache={folder}/cache", "container.pull=true"]
    where = ["cluster=slurm", "gpus=0", f"run_root={folder}/runs", f"mounts=[{mounts}]", f"python={program}"]
    return [*image, *where, "container.limits=null"]


def test_an_image_that_is_not_here_is_fetched_once_by_a_job_that_the_runs_wait_for(
    bed: Testbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Registry(f"pulled by a job {os.getpid()}", slow=1.0) as registry:
        asked = words(registry, tmp_path)
        assert main([*asked, "seed=1,2"]) == 0
        assert "a job of its own fetches it first" in capsys.readouterr().err
        folders = sorted(run.folder for run in selection.newest([str(tmp_path / "runs")], 2))
        job = job_of(store.read(Submission, folders[0] / "submission.json"))
        waits = call(["squeue", "--noheader", f"--jobs={(job or '').partition('_')[0]}", "--format=%E"]).stdout
        assert f"afterok:{(folders[0] / 'pull.out').read_text().strip()}" in waits
        for folder in folders:
            until(lambda folder=folder: store.read_or_empty(folder / "status.json").get("state") == "done")
            assert (folder / "attempts/1/stdout.log").read_text() == "it ran in the image\n"
        (image,) = (tmp_path / "cache").glob("*.sif")
        assert image.stem == registry.digest.replace(":", "-")
        fetched = registry.blob_fetches
        assert main([*asked, "wait=true"]) == 0
        assert registry.blob_fetches == fetched
        assert "fetches it first" not in capsys.readouterr().err


def test_a_run_whose_image_could_not_be_fetched_never_starts(bed: Testbed, tmp_path: Path) -> None:
    with Registry("never fetched") as registry:
        registry.blobs.clear()
        assert main(words(registry, tmp_path)) == 0
        folder = started(tmp_path / "runs")
        log = folder / "pull.log"
        until(lambda: log.exists() and "could not fetch" in log.read_text())
        assert main(["watch", folder.name]) == 1
    assert not (folder / "attempts/1").exists()


def test_what_is_refused_fetches_nothing(bed: Testbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Registry("refused") as registry:
        assert main([*words(registry, tmp_path), "after=20260101-000000-no-such"]) == 2
        by_docker = ["container=docker", f"image={bed.images['python'].docker}", "container.pull=true"]
        assert main([*by_docker, f"run_root={tmp_path}/runs"]) == 2
        assert "container.pull=true is for cluster=slurm with container=apptainer" in capsys.readouterr().err
        assert registry.blob_fetches == 0
    assert "image-pull" not in call(["squeue", "--me", "--noheader", "--format=%j"]).stdout
    assert selection.run_names(str(tmp_path / "runs")) == []
