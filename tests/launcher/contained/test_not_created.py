"""A container that the engine can't create or start fails its run, whatever the engine answers about it later."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from amp_launcher.loop import result_fields
from launcher.__main__ import main
from launcher.code import code_store
from launcher.errors import UsageError
from launcher.executors import execute, resume
from launcher.plan import record
from launcher.plan.resolve import resolve
from launcher.runs import store
from tests.launcher.contained.conftest import until
from tests.launcher.contained.test_text import with_containers
from tests.launcher.hosts import LAPTOP, spec_of

# What podman 4.3 did where it could make the container and not start it: asked how that ended, it says 0.
ENGINE = """#!/bin/sh
case $1 in
  run) echo "Error: could not find slirp4netns" >&2; exit CODE ;;
  wait) echo 0 ;;
  image) echo "$*" >>"$0.asked"; cat "$0.image" ;;
esac
"""


@pytest.mark.parametrize(
    ("engine", "code", "proof"),
    [
        *(("podman", 125, ()), ("podman", 126, ("require_proof=false",)), ("podman", 127, ())),
        *(("docker", 125, ("require_proof=false",)), ("docker", 126, ()), ("docker", 127, ("require_proof=false",))),
    ],
)
def test_a_container_that_does_not_start_fails_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, code: int, proof: tuple[str, ...]
) -> None:
    folder = run(tmp_path, monkeypatch, engine, code, *proof)
    status = store.read_or_empty(folder / "status.json")
    assert (status["state"], status["exit_code"]) == ("failed", code)
    assert status["reason"] == f"{engine} could not start the container or what runs in it (exit code {code})"
    assert "slirp4netns" in (folder / "attempts/1/stderr.log").read_text()


def test_a_run_whose_image_is_gone_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path, monkeypatch, "docker", 1)
    before = (folder / "status.json").read_text()
    assert main(["resume", folder.name, f"run_root={folder.parent}"]) == 2
    assert f"docker can't find the image that {folder.name} ran in (local/torch)" in capsys.readouterr().err
    assert (folder / "status.json").read_text() == before and not (folder / "attempts/plan.json").exists()
    asked = tmp_path / "bin" / "docker.asked"
    once = asked.read_text()
    asked.unlink()
    plan = record.from_json(store.read_or_empty(folder / "plan.json"))
    with pytest.raises(UsageError, match="can't find the image"):
        resume.with_images([plan] * 3)
    assert asked.read_text() == once


def test_a_run_records_the_image_that_its_tag_meant_when_it_was_planned_and_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(tmp_path, monkeypatch, "docker", 1)
    (tmp_path / "bin" / "docker.image").write_text('[{"Id": "sha256:second", "Architecture": "amd64"}]')
    main(["resume", folder.name, f"run_root={folder.parent}"])
    until((folder / "attempts/2/stderr.log").exists)
    for path, identity in (("plan.json", "sha256:first"), ("attempts/2/plan.json", "sha256:second")):
        plan = store.read_or_empty(folder / path)
        assert plan["container"]["identity"] == result_fields.digests(plan, "")["image"] == identity


def test_a_run_is_done_with_the_result_of_its_own_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path, monkeypatch, "podman", 0)
    status = store.read_or_empty(folder / "status.json")
    assert (status["state"], status["reason"]) == ("failed", "the trainer ended with exit code 0 and left no result")
    store.write_json(folder / "result.json", {"attempts": 2})
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == 0
    assert store.read_or_empty(folder / "status.json")["state"] == "done"
    assert subprocess.run(["bash", str(folder / "run.sh")]).returncode == 1
    assert store.read_or_empty(folder / "status.json")["attempt"] == 3


def test_where_no_proof_is_required_the_exit_code_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(tmp_path, monkeypatch, "docker", 0, "require_proof=false")
    assert store.read_or_empty(folder / "status.json")["state"] == "done"


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, code: int, *words: str) -> Path:
    """The folder of a run whose engine ends with that code."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / engine).write_text(ENGINE.replace("CODE", str(code)))
    (tmp_path / "bin" / engine).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    facts = dataclasses.replace(
        with_containers(LAPTOP, image="local/torch", image_identity="sha256:first"), run_root=str(tmp_path / "runs")
    )
    plan = resolve(spec_of(f"container={engine}", "image=local/torch", *words), facts)
    (tmp_path / "runs").mkdir()
    code_store.store(tmp_path / "runs" / ".code", plan.code, {})
    folder = execute.prepare(plan)
    subprocess.run(["bash", str(folder / "run.sh")], check=False)
    return folder
