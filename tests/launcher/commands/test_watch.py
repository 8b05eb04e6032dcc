import os
import signal
import subprocess
import time

import pytest

from launcher.commands import watch
from launcher.errors import UsageError
from launcher.runs import store

from ..run_folders import NAME, STEPPING, SWEEP, command, finished, make, start, state, sweep, until


def never(*_):
    raise AssertionError("it was called")


@pytest.mark.parametrize(("name", "code"), [("done", 0), ("failed", 1), ("stopped", 1)])
@pytest.mark.parametrize("words", [[NAME], []])
def test_how_a_run_ended_is_shown_at_once_and_by_the_exit_code(root, name, code, words, capsys, monkeypatch):
    finished(root, state=name, reason="why it did")
    monkeypatch.setattr(time, "sleep", never)
    assert watch.main(words) == code
    printed = capsys.readouterr()
    assert f"{name} after 1m05s: why it did" in printed.out
    assert printed.err == ("" if words else f"newest run: {NAME}\n")


def test_without_a_run_it_is_the_newest_that_has_not_ended(root, capsys):
    folder = make(root, trainer=f"STEPS=10\n{STEPPING}")
    finished(root, "20270101-000000-calm-lake")
    start(folder)
    assert watch.main([]) == 0
    printed = capsys.readouterr()
    assert printed.err == f"newest unfinished run: {NAME}\n"
    assert "brave-otter  done" in printed.out


def test_of_a_sweep_all_runs_are_watched(root, capsys):
    cells = sweep(root, 2)
    running = make(root, f"{SWEEP}-002", trainer=f"STEPS=3\n{STEPPING}")
    store.write_sweep(root, SWEEP, [folder.name for folder in (*cells, running)], {})
    start(running)
    for words, message in (([], f"newest unfinished sweep: {SWEEP}\n"), (["calm"], "")):
        assert watch.main(words) == 0
        printed = capsys.readouterr()
        assert printed.err == message and f"3 runs of {SWEEP}" in printed.out


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
