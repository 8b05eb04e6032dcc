"""Scripts as people bring them (tests/scripts), untouched: stopped in the middle, resumed, compared and proved."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.launcher import warm
from tests.launcher.real_scripts import ENDLESS, FOLDER, SCRIPTS, copied, folders, goes_on, printed, result
from tests.launcher.run_folders import called, command, state, until

CHECKOUT = str(Path(__file__).parents[3])
BY_CTRL_C = ("torch", "gan")
"""Stopped where they run in the foreground; the others by `cancel`."""
SWEPT = ("torch", "trainer", "gan")
"""Stopped as the second run of a sweep, whose first one ends by itself and has learnt. Of the others that is the one
that was stopped; but a learning rate that falls with a run's length learns nothing there, and a GAN's loss goes up and
down."""
LOOPS = ("trainer", "keras")
"""Those whose steps a library takes."""
each_script = pytest.mark.parametrize("name", SCRIPTS)


@pytest.fixture
def project(tmp_path):
    return copied(tmp_path)


def where(script):
    return "env.OMP_NUM_THREADS=1", f"python={warm.python(*script.libraries)}"


def start(project, *words):
    env = {**os.environ, "PYTHONPATH": CHECKOUT}
    env.pop("PYTEST_CURRENT_TEST", None)
    out = subprocess.PIPE
    return subprocess.Popen(command(*words), cwd=project, env=env, stdout=out, stderr=subprocess.STDOUT, text=True)


def launcher(project, *words):
    """What a command prints that is to end well."""
    done = called(*words, cwd=project, PYTHONPATH=CHECKOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until_in_the_middle(root, runs):
    """The folder of the last of so many runs, once it trains."""

    def training():
        started = folders(root) if root.exists() else []
        return started[-1] if len(started) == runs and len(printed(started[-1])) >= 3 else None

    return until(training, 120)


@pytest.mark.slow
@each_script
def test_stopped_in_the_middle_and_resumed_its_steps_go_on(project, root, name):
    script = SCRIPTS[name]
    swept = name in SWEPT
    # The runs of a sweep start in folders of their own.
    words = (
        script.file,
        "amp=o1",
        *where(script),
        f"sweep.length={script.short},{ENDLESS}" if swept else "workdir=run",
        f"run_root={root}",
    )
    length = "{length}" if swept else ENDLESS
    by_ctrl_c, arguments = name in BY_CTRL_C, ("--", *script.arguments, f"{script.steps}{length}")
    running = start(project, *words, *arguments) if by_ctrl_c else launcher(project, *words, "detach=true", *arguments)
    stopped = until_in_the_middle(root, 1 + swept)
    if by_ctrl_c:
        running.send_signal(signal.SIGINT)
        running.communicate()
    else:
        launcher(project, "cancel", stopped.name, f"run_root={root}")
    for first in folders(root)[:-1]:
        assert (result(first)["status"], result(first)["observed"]["verdict"]) == ("done", "proved")
    assert state(stopped).name == ("stopped" if by_ctrl_c else "cancelled")

    last = printed(stopped)[-1][0]
    further = f"script.resume_arguments={script.further(last)}"
    launcher(project, "resume", stopped.name, further, f"run_root={root}")
    assert goes_on(stopped)
    learnt = printed(folders(root)[0]) if swept else printed(stopped) + printed(stopped, 2)
    losses = [loss for _, loss in learnt]
    assert losses[-1] < 0.9 * losses[0]
    outcome = result(stopped)
    assert (outcome["status"], outcome["observed"]["verdict"], outcome["attempts"]) == ("done", "proved", 2)
    assert outcome["throughput"]["unit"] == "steps/s" and outcome["throughput"]["mean"] > 0
    assert sorted(path.name for path in project.iterdir()) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_compared_each_mode_is_proved_and_has_a_rate(project, root, name):
    script = SCRIPTS[name]
    how = ("compare.rounds=1", "compare.steps=30", "compare.cool_down=0")
    words = ("compare", script.file, f"amp={script.levels}", *how, *where(script), f"run_root={root}")
    shown = launcher(project, *words, "--", *script.arguments, f"{script.steps}{ENDLESS}")
    rows = [line.split() for line in shown.partition("\narm ")[2].splitlines() if line.startswith("amp=")]
    table = rows[: len(script.levels.split(","))]
    assert [(row[0], row[-2:]) for row in table] == [
        (f"amp={level}", ["proved", "done"]) for level in script.levels.split(",")
    ]
    assert "steps/s" in shown
