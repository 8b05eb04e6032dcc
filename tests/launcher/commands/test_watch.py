import os
import signal
import subprocess

import pytest

from launcher.commands import watch
from launcher.errors import UsageError
from launcher.runs import store

from ..run_folders import NAME, STEPPING, command, finished, make, start, state, until

SWEEP = "20260103-000000-calm-lake"


@pytest.mark.parametrize(("name", "code"), [("done", 0), ("failed", 1), ("stopped", 1)])
def test_the_exit_code_shows_whether_the_run_is_done(root, name, code, capsys):
    finished(root, state=name)
    assert watch.main([NAME]) == code
    assert name in capsys.readouterr().out


def test_without_a_run_it_is_the_newest_that_has_not_ended(root, capsys):
    folder = make(root, trainer=f"STEPS=10\n{STEPPING}")
    finished(root, "20270101-000000-calm-lake")
    start(folder)
    assert watch.main([]) == 0
    found = capsys.readouterr()
    assert found.err == f"newest unfinished run: {NAME}\n"
    assert "brave-otter  done" in found.out


def test_where_all_have_ended_it_is_the_newest(root, capsys):
    finished(root)
    assert watch.main([]) == 0
    assert f"newest run: {NAME}" in capsys.readouterr().err


def test_a_whole_sweep_can_be_watched(root, capsys):
    cells = [f"{SWEEP}-00{index}" for index in range(3)]
    for cell in cells:
        finished(root, cell)
    store.write_sweep(root, SWEEP, cells, {})
    assert watch.main(["calm"]) == 0
    assert f"3 runs of {SWEEP}" in capsys.readouterr().out


def test_without_a_run_it_is_the_whole_sweep_of_the_newest(root, capsys):
    cells = [f"{SWEEP}-00{index}" for index in range(2)]
    finished(root, cells[0])
    folder = make(root, cells[1], trainer=f"STEPS=3\n{STEPPING}")
    store.write_sweep(root, SWEEP, cells, {})
    start(folder)
    assert watch.main([]) == 0
    found = capsys.readouterr()
    assert found.err == f"newest unfinished sweep: {SWEEP}\n"
    assert f"2 runs of {SWEEP}" in found.out


def test_ctrl_c_leaves_the_run_alone(root):
    folder = make(root, trainer=STEPPING)
    start(folder)
    watcher = subprocess.Popen(
        command("watch", NAME), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    )
    until(lambda: "running" in watcher.stdout.readline())
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=120)
    assert watcher.returncode == 130
    assert f"still running: {NAME}" in err and "Traceback" not in err
    assert state(folder).name == "running" and not (folder / "STOP").exists()


def test_a_sweep_of_which_nothing_is_left_is_an_error(root):
    store.write_sweep(root, SWEEP, [f"{SWEEP}-000"], {})
    with pytest.raises(UsageError, match="no run of calm is left"):
        watch.main(["calm"])
