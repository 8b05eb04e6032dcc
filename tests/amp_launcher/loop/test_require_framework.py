"""A trainer started by a Python that has no such framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("framework", "module", "package"),
    [
        ("torch", "amp_launcher.recipes.mnist.train_torch", "torch"),
        ("torch", "amp_launcher.torch.script", "torch"),
        ("tensorflow", "amp_launcher.recipes.mnist.train_tensorflow", "tensorflow"),
        ("paddle", "amp_launcher.recipes.simplenet.train_paddle", "paddlepaddle"),
    ],
)
def test_without_the_framework_the_command_that_installs_it_is_named_in_one_line(tmp_path, framework, module, package):
    (tmp_path / f"{framework}.py").write_text(f"raise ModuleNotFoundError('no', name='{framework}')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [sys.executable, "-m", module, "amp=o0"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"framework={framework} is not installed for {sys.executable}: choose an image that has it, name another "
        f"Python with python=, or install it: {sys.executable} -m pip install {package}\n"
    )
