"""Chains on the real Slurm: queued, cancelled and resumed as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors.slurm import submit
from launcher.probe.slurm_commands import call
from launcher.runs import selection, store
from tests.launcher.slurm.bench import ended, job_of, state, until
from tests.testbed.facts import Testbed

CHAIN = """\
prepare:
  words: cmd -- ./job.sh {folder} prepare
train:
  needs: prepare
  words: cmd -- ./job.sh {folder} train
evaluate:
  needs: [train, any:prepare]
  words: cmd -- ./job.sh {folder} evaluate
"""
JOB = """\
#!/bin/sh
until [ -e "$1/go" ]; do sleep 0.2; done
[ ! -e "$1/$2-fails" ]
"""


@pytest.fixture
def project(slurm: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.sh").write_text(JOB)
    (folder / "job.sh").chmod(0o755)
    (folder / "nightly.yaml").write_text(CHAIN.format(folder=folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    return ["chain", "nightly.yaml", "cluster=slurm", "gpus=0", "telemetry.every=0", f"run_root={tmp_path}/runs"]


def start(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[Path]:
    capsys.readouterr()
    code = main(words)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return [Path(words[-1].partition("=")[2], name) for name in printed.out.split()]


def test_a_chain_waits_in_the_queue_fails_as_one_and_is_resumed_with_what_waited(
    project: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train-fails").touch()
    folders = prepare, train, evaluate = start(words, capsys)
    until(lambda: state(train).reason == f"waiting for {prepare.name}, which it comes after")
    until(lambda: state(evaluate).reason == f"waiting for {prepare.name}, {train.name}, which it comes after"
          or state(evaluate).reason == f"waiting for {train.name}, {prepare.name}, which it comes after")  # fmt: skip
    (project / "go").touch()
    assert [ended(folder).name for folder in folders] == ["done", "failed", "cancelled"]
    assert state(evaluate).reason == f"it never started: it was to come after {train.name}, which failed"
    (project / "train-fails").unlink()
    assert main(["resume", prepare.name.rpartition("-")[0], "failed", words[-1]]) == 0
    assert [ended(folder).name for folder in folders] == ["done"] * 3
    assert [store.attempts(folder) for folder in folders] == [[1], [1, 2], [1]]
    first, second = (store.read_or_empty(folder / "status.json") for folder in (train, evaluate))
    assert second["started"] >= first["ended"]


def test_a_chain_is_cancelled_as_one_and_no_job_is_left(
    project: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folders = start(words, capsys)
    until(lambda: state(folders[0]).name == "running")
    jobs = [job_of(folder) for folder in folders]
    assert main(["cancel", "--now", folders[0].name.rpartition("-")[0], words[-1]]) == 0
    assert [ended(folder).name for folder in folders] == ["cancelled"] * 3
    until(lambda: not call(["squeue", "--noheader", f"--jobs={','.join(jobs)}"]).stdout.strip())


def test_a_chain_whose_last_job_slurm_refuses_leaves_no_job_and_no_folder(
    project: Path, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (project / "nightly.yaml").read_text()
    wrong = text.replace(f"-- ./job.sh {project} evaluate", f"cluster.constraint=quantum -- ./job.sh {project} x")
    (project / "nightly.yaml").write_text(wrong)
    root = words[-1].partition("=")[2]
    assert main(words) == 2
    assert "Slurm would refuse this job" in capsys.readouterr().err
    monkeypatch.setattr("launcher.executors.submission.check_plans", lambda plans: None)
    accepted: list[str] = []
    sbatch = submit.sbatch

    def noted(argv, answer) -> str:
        accepted.append(sbatch(argv, answer))
        return accepted[-1]

    monkeypatch.setattr(submit, "sbatch", noted)
    assert main(words) == 2
    assert "Slurm refused the job" in capsys.readouterr().err
    assert len(accepted) == 2
    until(lambda: not call(["squeue", "--noheader", f"--jobs={','.join(accepted)}"]).stdout.strip())
    assert selection.run_names(root) == []
