"""Submission of a sweep in several tries, as a host does whose connection was lost in between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.code import code_store
from launcher.errors import UsageError
from launcher.executors import submission
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import run_ids, store
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
def test_a_try_that_fails_forgets_its_sweep_unless_an_earlier_one_started_cells(
    root: Path, plans: list[Plan], started: int
) -> None:
    earlier, later = plans[:started], plans[started:]
    if earlier:
        (running,) = submission.submit(earlier, {}, cells=CELLS)
    with pytest.raises(UsageError, match="the queue is closed"):
        submission.submit(later, {}, cells=CELLS, start=refuse)
    assert [(root / name).exists() for name in CELLS] == [bool(started), False, False]
    assert (root / store.SWEEPS / f"{SWEEP}.json").exists() == bool(started)
    if earlier:
        until(lambda: state(running).name == "done")
