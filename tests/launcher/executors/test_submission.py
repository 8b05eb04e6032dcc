"""Submission of a sweep in several tries, as a host does whose connection was lost in between."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.code import code_store
from launcher.errors import Unavailable, UsageError
from launcher.executors import submission
from launcher.executors.slurm import submit
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import run_ids
from tests.launcher.compare.test_comparison import CONTAINED
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import SWEEP, state, until
from tests.launcher.slurm.test_text import plan_of

CELLS = [run_ids.cell_id(SWEEP, index, 3) for index in range(3)]


def refuse(folders: Sequence[Path], plans: Sequence[Plan]) -> None:
    raise UsageError("the queue is closed")


@pytest.fixture
def plans(root: Path, program: Path, tmp_path: Path) -> list[Plan]:
    plan = resolve(spec_of("gpus=0"), dataclasses.replace(LAPTOP, run_root=str(root), python=str(program)))
    code_store.store(root / ".code", plan.code, {})
    plan = dataclasses.replace(plan, env={**plan.env, "DUMP": str(tmp_path / "dump")})
    return [plan.bind(name) for name in CELLS]


@pytest.mark.parametrize("started", [0, 1])
def test_a_try_that_fails_leaves_the_cells_alone_that_an_earlier_one_started(
    root: Path, plans: list[Plan], started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, later = plans[:started], plans[started:]
    if earlier:
        (running,) = submission.submit(earlier, {})
    monkeypatch.setattr(submission, "start", refuse)
    with pytest.raises(UsageError, match="the queue is closed"):
        submission.submit(later, {})
    assert [(root / name).exists() for name in CELLS] == [bool(started), False, False]
    if earlier:
        until(lambda: state(running).name == "done")


def test_the_command_line_submits_through_submitits_executor(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "project" / "train.py"
    script.parent.mkdir()
    script.write_text("")
    words = [str(script), "amp=o0", "train.bare=true", "gpus=0", "detach=true", f"run_root={root}"]
    code = (
        "import sys; from submitit.core.core import Executor; from launcher.__main__ import main\n"
        "submit = Executor.submit\n"
        "Executor.submit = lambda self, *call: print(type(self).__name__, call[0].__name__) or submit(self, *call)\n"
        f"sys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    called, run = done.stdout.split("\n")[:2]
    assert called == "LocalExecutor execute"
    until(lambda: state(root / run).finished)


def test_where_slurm_does_not_answer_no_job_is_left_that_fetches_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {"scontrol": "echo no controller >&2; exit 1", "sbatch": f"echo $* >>{tmp_path}/submitted; echo 7"}
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    container = dataclasses.replace(CONTAINED, asked="a:1", image=str(tmp_path / "a.sif"), pull="a:1")
    plan = dataclasses.replace(plan_of("gpus=0"), container=container)
    folders = [tmp_path / name for name in CELLS]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(Unavailable, match="no controller"):
        submit.start(folders, [plan.bind(name) for name in CELLS])
    assert not (tmp_path / "submitted").exists()
