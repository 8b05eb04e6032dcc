from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.executors import backends
from launcher.runs import selection, store
from tests.launcher.slurm.bench import Bench
from tests.launcher.slurm.trainers import Moments, Trainers, submitting, undisturbed
from tests.testbed.facts import Testbed


@pytest.fixture
def slurm(testbed: Testbed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own; jobs of the test are cancelled at its end."""
    for name, value in testbed.environment.items():
        monkeypatch.setenv(name, value)
    for name in [each for each in os.environ if each.startswith(("SLURM_JOB", "SLURM_ARRAY", "SBATCH_"))]:
        monkeypatch.delenv(name)
    yield testbed
    wanted = selection.newest([str(tmp_path / "runs")], 10_000)
    backends.end({str(run.folder): store.load(str(run.folder)) for run in wanted}, 0)


@pytest.fixture
def bench(slurm: Testbed, tmp_path: Path, program: Path) -> Bench:
    return Bench(tmp_path, program)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.fixture
def trainers(slurm: Testbed, tmp_path: Path, whole: Path) -> Iterator[Trainers]:
    with submitting(Trainers(tmp_path, whole)) as found:
        yield found


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> Moments:
    return Moments(request.node.name)


@pytest.fixture(scope="session")
def whole_of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "run", ranks=2)


@pytest.fixture
def pairs(slurm: Testbed, tmp_path: Path, whole_of_two_ranks: Path) -> Iterator[Trainers]:
    """Trainers of two ranks, each on a node of its own."""
    with submitting(Trainers(tmp_path, whole_of_two_ranks, "nodes=2")) as found:
        yield found
