from __future__ import annotations

import pytest

from tests.testbed.facts import Testbed


@pytest.fixture
def bed(testbed: Testbed, monkeypatch: pytest.MonkeyPatch) -> Testbed:
    """The testbed, with this process's environment as a login to it has it."""
    for name, value in testbed.environment.items():
        monkeypatch.setenv(name, value)
    # Where root may not raise its capabilities, Apptainer works in a user namespace, as it does for anyone else.
    monkeypatch.setenv("APPTAINER_USERNS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return testbed
