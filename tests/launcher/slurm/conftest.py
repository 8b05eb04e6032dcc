from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.executors.slurm import jobs, shared
from tests.launcher.run_folders import end_all
from tests.launcher.slurm.bench import Bench, cluster_of
from tests.launcher.slurm.counted import Programs
from tests.launcher.slurm.trainers import Moments, undisturbed
from tests.testbed.facts import Testbed


@pytest.fixture
def slurm(testbed: Testbed, tmp_path: Path) -> Iterator[Testbed]:
    """The testbed's cluster as this process's own; jobs of the test are cancelled at its end."""
    with cluster_of(testbed, tmp_path):
        yield testbed
        end_all(tmp_path / "runs")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    stand_ins = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{stand_ins.folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.delenv("LAUNCHER_ASK_EVERY", raising=False)
    jobs._fields.cache_clear()
    yield stand_ins
    jobs._fields.cache_clear()
    shared._own.clear()
    shared._noted.clear()


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
