from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.real import Place, make_place
from tests.testbed.facts import Testbed


@pytest.fixture
def place(testbed: Testbed) -> Iterator[Place]:
    """A new folder on the testbed's shared file system, laid out as a run."""
    with _folder(testbed) as folder:
        yield make_place(testbed, folder)


@pytest.fixture(scope="module")
def shared_place(testbed: Testbed) -> Iterator[Place]:
    """The same, kept for a module's tests."""
    with _folder(testbed) as folder:
        yield make_place(testbed, folder)


class _folder:
    """A name for a folder that is not there yet, and its end."""

    def __init__(self, testbed: Testbed) -> None:
        # Images are named by it, in which Docker wants no `_` at the end.
        self.path = Path(testbed.shared, f"containers-{uuid.uuid4().hex[:8]}")

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
