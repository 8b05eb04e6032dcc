from __future__ import annotations

import functools
from pathlib import Path

import pytest

from launcher.runs import selection
from tests.launcher import run_folders
from tests.testbed.facts import Testbed

until = functools.partial(run_folders.until, seconds=90.0, every=0.2)


def started(root: Path) -> Path:
    """The folder of the one run there."""
    (run,) = selection.newest([str(root)], 1)
    return run.folder


@pytest.fixture
def bed(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Testbed:
    """The testbed, with this process's environment as a login to it has it."""
    for name, value in testbed.environment.items():
        monkeypatch.setenv(name, value)
    # Where root may not raise its capabilities, Apptainer works in a user namespace, as it does for anyone else.
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return testbed
