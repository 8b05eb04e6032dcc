"""Commands are named as the reader started the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("words", [["run", "--help"], [], ["resume"]])
def test_the_installed_command_names_itself(words: list[str], tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("amp-launcher")
    environment = {**os.environ, "HOME": str(tmp_path)}
    for start, own, other in (
        ([str(command)], "amp-launcher ", "python -m launcher"),
        ([sys.executable, "-m", "launcher"], "python -m launcher ", "amp-launcher "),
    ):
        ended = subprocess.run([*start, *words], capture_output=True, text=True, env=environment, cwd=tmp_path)
        shown = ended.stdout + ended.stderr
        assert own in shown and other not in shown
