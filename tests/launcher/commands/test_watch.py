import os
import signal
import subprocess
import time

import pytest

from launcher.commands import watch
from launcher.runs import remote_record
from launcher.runs.address import Address
from launcher.runs.remote_record import Known, Pointer
from launcher.runs.states import State

from ..run_folders import NAME, STEPPING, SWEEP, begin, command, finished, make, start, state, sweep, until


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
    sweep(root, 2)
    running = make(root, f"{SWEEP}-002", trainer=f"STEPS=3\n{STEPPING}")
    start(running)
    for words, message in (([], f"newest unfinished sweep: {SWEEP}\n"), (["calm"], "")):
        assert watch.main(words) == 0
        printed = capsys.readouterr()
        assert printed.err == message and f"3 runs of {SWEEP}" in printed.out


def left(word):
    """What `watch` says at a Ctrl-C after it has shown that word of the run."""
    watcher = subprocess.Popen(
        command("watch", NAME), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    )
    until(lambda: word in watcher.stdout.readline())
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate()
    assert watcher.returncode == 130 and "Traceback" not in err
    return err


def test_ctrl_c_leaves_the_run_alone(root):
    folder = begin(root, STEPPING)
    assert f"still running: {NAME};" in left("running")
    assert state(folder).name == "running" and not (folder / "STOP").exists()


def test_ctrl_c_tells_of_a_host_that_cannot_be_reached_and_when_the_state_was_known(root):
    place = Address(destination="127.0.0.1:1", config="/dev/null")
    folder = remote_record.create(NAME, Pointer(address=place, root="/runs", token=""))
    remote_record.remember(folder, Known(state=State("running", attempt=1), seen=time.time() - 600))
    err = left("unreachable")
    assert f"unreachable: {NAME}: " in err and "refused" in err and "; running 10m" in err
    assert "still running" not in err
