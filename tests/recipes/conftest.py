from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Parts of the suite share the cores: a second thread would only wait for them. Before a framework is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.recipes.forking import Forks


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Processes that have imported TensorFlow."""
    forks = Forks("recipes.tensorflow_.mnist", "recipes.tensorflow_.script")
    yield forks
    forks.close()
