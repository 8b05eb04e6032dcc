"""A script without torch, TensorFlow and Paddle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULE = "import runpy, sys; sys.path[0] = sys.argv.pop(1); runpy._run_module_as_main('amp_launcher.around.unobserved')"


@pytest.mark.parametrize("code", [0, 3])
def test_it_ends_as_alone_and_unknown_for_the_reason_that_nothing_can_observe_it(code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"print('loss', 1.0)\nopen('weights', 'w').write('1')\nraise SystemExit({code})\n"
    )
    words = [f"script={tmp_path}/train.py", f"workdir={tmp_path}", "amp=o0", f"run={tmp_path}/run"]
    command = [sys.executable, "-S", "-c", MODULE, str(ROOT), *words]  # -S: without packages, NumPy among them
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "loss 1.0\n" in done.stdout and (tmp_path / "weights").exists()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["framework"]) == ("failed" if code else "done", "none")
    assert result["observed"]["verdict"] == "unknown"
    if not code:
        assert "no framework that can be observed (framework=none)" in result["observed"]["why"]
