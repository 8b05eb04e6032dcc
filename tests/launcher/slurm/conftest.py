from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.slurm.bench import Bench, cluster_of, end_all
from tests.launcher.slurm.trainers import Moments, undisturbed
from tests.testbed.facts import Testbed


@pytest.fixture
def slurm(testbed: Testbed, tmp_path: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own; jobs of the test are cancelled at its end."""
    with cluster_of(testbed, tmp_path):
        yield testbed
        end_all(tmp_path / "runs")


@pytest.fixture
def bench(slurm: Testbed, tmp_path: Path, program: Path) -> Bench:
    return Bench(tmp_path, program)


@pytest.fixture
def moments(request: pytest.FixtureRequest) -> Moments:
    return Moments(request.node.name)


@pytest.fixture(scope="session")
def plain_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the plain trainer that nothing happened to."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "run", plain=True)
