from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import queues, runs
from tests.launcher.slurm.bench import Bench
from tests.testbed.facts import Testbed


@pytest.fixture
def slurm(testbed: Testbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own; jobs of the test are cancelled at its end."""
    for name, value in testbed.environment.items():
        monkeypatch.setenv(name, value)
    for name in [each for each in os.environ if each.startswith(("SLURM_JOB", "SLURM_ARRAY", "SBATCH_"))]:
        monkeypatch.delenv(name)
    yield testbed
    wanted = runs.newest([str(tmp_path / "runs")], 10_000)
    queues.end({str(run.folder): runs.load(str(run.folder)) for run in wanted}, 0)


@pytest.fixture
def bench(slurm: Testbed, tmp_path: Path, program: Path) -> Bench:
    return Bench(tmp_path, program)
