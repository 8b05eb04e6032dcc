"""Scripts as people bring them (tests/scripts), untouched: swept, stopped in the middle, resumed, compared and proved.

One sweep shows most of it: its first run ends by itself, its second is stopped in the middle and resumed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launcher.real_scripts import ENDLESS, FOLDER, SCRIPTS, copied, folders, goes_on, printed, result

CHECKOUT = Path(__file__).parents[3]
BY_CTRL_C = ("torch", "gan")
"""Stopped where they run in the foreground; the others by `cancel`."""
ONE_THREAD = ("env.OMP_NUM_THREADS=1",)
each_script = pytest.mark.parametrize("name", SCRIPTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copied(tmp_path)


def start(project: Path, root: Path, *words: str) -> subprocess.Popen[str]:
    at = words.index("--") if "--" in words else len(words)
    argv = [sys.executable, "-m", "launcher", *words[:at], f"run_root={root}", *words[at:]]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    out = subprocess.PIPE
    return subprocess.Popen(argv, cwd=project, env=env, stdout=out, stderr=subprocess.STDOUT, text=True)


def launcher(project: Path, root: Path, *words: str) -> str:
    """What a command prints that is to end well."""
    process = start(project, root, *words)
    shown, _ = process.communicate(timeout=240)
    assert process.returncode == 0, shown
    return shown


def until_in_the_middle(root: Path) -> Path:
    """The folder of the sweep's second run, once it trains."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if len(found := folders(root)) == 2 and len(printed(found[1])) >= 3:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"it does not train: {[path.name for path in folders(root)]}")


@pytest.mark.slow
@each_script
def test_swept_stopped_in_the_middle_and_resumed_its_steps_go_on(project: Path, root: Path, name: str) -> None:
    script = SCRIPTS[name]
    words = (script.file, "amp=o1", f"sweep.length={script.short},{ENDLESS}", *ONE_THREAD)
    running = start(project, root, *words, "--", *script.arguments, f"{script.steps}{{length}}")
    stopped = until_in_the_middle(root)
    if name in BY_CTRL_C:
        running.send_signal(signal.SIGINT)
    else:
        launcher(project, root, "cancel", stopped.name)
    shown, _ = running.communicate(timeout=120)
    (first, _) = folders(root)
    losses = [loss for _, loss in printed(first)]
    assert losses[-1] < 0.9 * losses[0]
    assert (result(first)["status"], result(first)["observed"]["verdict"]) == ("done", "proved"), shown
    expected = "stopped" if name in BY_CTRL_C else "cancelled"
    assert json.loads((stopped / "status.json").read_text())["state"] == expected, shown

    last = printed(stopped)[-1][0]
    launcher(project, root, "resume", stopped.name, f"script.resume_arguments={script.further(last)}")
    assert goes_on(stopped)
    found = result(stopped)
    assert (found["status"], found["observed"]["verdict"], found["attempts"]) == ("done", "proved", 2)
    assert found["throughput"]["unit"] == "steps/s" and found["throughput"]["mean"] > 0
    assert sorted(path.name for path in project.iterdir()) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.slow
@each_script
def test_compared_each_mode_is_proved_and_has_a_rate(project: Path, root: Path, name: str) -> None:
    script = SCRIPTS[name]
    how = ("compare.rounds=1", "compare.steps=30", "compare.cool_down=0")
    words = ("compare", script.file, f"amp={script.levels}", *how, *ONE_THREAD)
    shown = launcher(project, root, *words, "--", *script.arguments, f"{script.steps}{ENDLESS}")
    rows = [line.split() for line in shown.partition("\nCOMPARISON\n")[2].splitlines() if line.startswith("amp=")]
    table = rows[: len(script.levels.split(","))]
    assert [(row[0], row[-2:]) for row in table] == [
        (f"amp={level}", ["proved", "done"]) for level in script.levels.split(",")
    ]
    assert "steps/s" in shown
