from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.__main__ import main

Refusal = Callable[..., str]
"""Words -> the one line of their refusal."""


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Refusal:
    """The line with which a command is refused: nothing else is printed, and its exit code is 2."""

    def refused(*words: str) -> str:
        assert main(words) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.count("\n") == 1 and shown.err.startswith("error: "), shown
        return shown.err

    return refused


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a script in torch. HOME is the folder that it lies in."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder
