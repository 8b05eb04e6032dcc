"""What of a script's folder reaches another host, and what becomes of it there. Over a real sshd."""

from __future__ import annotations

import pytest

TRAIN = """\
import os, subprocess
here = os.path.dirname(os.path.abspath(__file__))
print("tool says", subprocess.run([here + "/tools/prep.sh"], capture_output=True, text=True, check=True).stdout)
"""


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "tools/prep.sh").write_text("#!/bin/sh\necho ready\n")
    (folder / "tools/prep.sh").chmod(0o755)
    return folder


def test_a_script_calls_its_own_tool_over_there(far, project):
    own = ("train.bare=true", "train.precision=script", "require_proof=false", f"python={far.testbed.python}")
    (run,) = far.submit("recipe=script", f"script={project}/train.py", *own)
    assert far.until(run, "done", "failed") == "done", far.type("logs", run)
    assert "tool says ready" in (far.root / run / "attempts/1/stdout.log").read_text()
