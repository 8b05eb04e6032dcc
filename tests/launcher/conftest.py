from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher.stand_in import make_program


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return make_program(tmp_path / "bin")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known run roots are the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
