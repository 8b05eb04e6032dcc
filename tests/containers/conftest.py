from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.real import Place, make_place
from tests.testbed.facts import Testbed


@pytest.fixture
def place(testbed: Testbed) -> Iterator[Place]:
    """A new folder on the testbed's shared file system, laid out as a run."""
    with _place(testbed) as made:
        yield made


@pytest.fixture(scope="module")
def shared_place(testbed: Testbed) -> Iterator[Place]:
    """The same, kept for a module's tests."""
    with _place(testbed) as made:
        yield made


@contextmanager
def _place(testbed: Testbed) -> Iterator[Place]:
    # Images are named by it, in which Docker wants no `_` at the end.
    folder = Path(testbed.shared, f"containers-{uuid.uuid4().hex[:8]}")
    try:
        yield make_place(testbed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
