from __future__ import annotations

import pytest
import submitit  # noqa: F401 (first: its import closes all handlers of logging, and absl's closes what pytest captures in)

from launcher.runs import run_roots
from tests.launcher.browser import browser
from tests.launcher.run_folders import end_all
from tests.launcher.stand_in import make_program

assert browser


@pytest.fixture
def program(tmp_path):
    """A stand-in for the trainer's Python."""
    return make_program(tmp_path / "bin")


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    """No test sees or leaves anything in the state folder of the person who runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("LAUNCHER_CONFIG_DIR", raising=False)


@pytest.fixture
def root(tmp_path):
    """A known run root, empty; whatever a test started in it is killed at the end."""
    folder = tmp_path / "runs"
    folder.mkdir()
    run_roots.remember(folder)
    yield folder
    end_all(folder)
