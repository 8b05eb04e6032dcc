"""Submission of a sweep in several tries, as a host does whose connection was lost in between."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.code import code_store
from launcher.errors import UsageError
from launcher.executors import submission
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import run_ids
from tests.launcher.hosts import LAPTOP, spec_of
from tests.launcher.run_folders import SWEEP, state, until

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
