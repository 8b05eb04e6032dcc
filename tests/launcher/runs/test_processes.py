import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.runs import processes
from launcher.runs.processes import Identity, Target
from tests.launcher.run_folders import NAME, until


@pytest.fixture
def started():
    """Starts shell text in a session of its own; whatever is left of it is killed at the end."""
    children = []

    def start(text, **environment):
        child = subprocess.Popen(
            ["bash", "-c", text],
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        children.append(child)
        return child

    yield start
    for child in children:
        for process in processes.processes_of([Target(None, NAME)])[0]:
            os.kill(process.pid, signal.SIGKILL)
        child.kill()
        child.wait()
        child.stdout.close()


def stat_of(pid):
    return Path(f"/proc/{pid}/stat").read_text()


def found(shell=None, run=NAME):
    return {each.pid for each in processes.processes_of([Target(shell, run)])[0]}


def test_a_process_is_known_by_pid_start_boot_and_host():
    me = processes.identity(os.getpid())
    fields = stat_of(os.getpid()).rpartition(")")[2].split()
    assert me == Identity(os.uname().nodename, processes.boot(), os.getpid(), int(fields[19]))
    assert processes.is_alive(me)
    assert processes.from_json(processes.to_json(me)) == me


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"start": 1}, {"boot": "another"}, {"host": "another"}])
def test_a_process_of_another_pid_start_boot_or_host_is_not_alive(change):
    me = processes.identity(os.getpid())
    assert not processes.is_alive(me._replace(**change))


def test_a_dead_child_that_nobody_has_waited_for_is_dead():
    child = subprocess.Popen(["sleep", "300"])
    identity = processes.identity(child.pid)
    assert processes.is_alive(identity)
    child.kill()
    until(lambda: stat_of(child.pid).split()[2] == "Z")
    assert not processes.is_alive(identity)
    assert processes.identity(child.pid) is None
    child.wait()


def test_a_command_name_with_brackets_and_blanks_is_no_trouble(tmp_path):
    odd = tmp_path / "a) R (b c"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "300"])
    until(lambda: "R (b" in stat_of(child.pid))
    try:
        assert processes.is_alive(processes.identity(child.pid))
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"host": "a"},
        {"host": "a", "boot": "b", "pid": "x", "start": 1},
        {"host": "", "boot": "b", "pid": 2, "start": 1},
    ],
)
def test_half_an_identity_is_none(value):
    assert processes.from_json(value) is None


def test_a_runs_processes_are_its_session_its_name_and_their_children(started):
    text = f"""
        sleep 300 &
        LAUNCHER_RUN_ID={NAME} setsid bash -c 'env -i sleep 300 & echo worker; wait' &
        wait
    """
    child = started(text)
    assert child.stdout.readline() == "worker\n"
    shell = processes.identity(child.pid)
    # The shell, its sleep, the worker in a session of its own, and the worker's child without any environment.
    until(lambda: len(found(shell)) == 4)
    assert child.pid in found(shell)


def test_processes_of_another_run_are_not_taken(started):
    other = started("echo ready; sleep 300", LAUNCHER_RUN_ID=f"{NAME}-001")
    assert other.stdout.readline() == "ready\n"
    assert found() == set()


def test_processes_that_a_killed_shell_leaves_are_found_by_the_runs_name(started):
    child = started(f"(export LAUNCHER_RUN_ID={NAME}; exec sleep 300) & (sleep 300) & echo ready; wait")
    assert child.stdout.readline() == "ready\n"
    shell = processes.identity(child.pid)
    until(lambda: len(found()) == 1)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    # The one with the name shows that the session is still the run's, so the other is found too.
    assert len(found(shell)) == 2


def test_a_session_number_that_was_given_again_is_left_alone(started):
    stranger = started("sleep 300 & echo ready; wait")
    assert stranger.stdout.readline() == "ready\n"
    before = processes.identity(stranger.pid)._replace(start=1)
    assert found(before) == set()
    assert processes.end([Target(before, NAME)], grace=0.2) == [[]]
    assert stranger.poll() is None


def test_many_runs_are_found_in_one_look(started):
    names = [f"{NAME}-{index:03d}" for index in range(3)]
    for name in names:
        assert started("echo ready; sleep 300", LAUNCHER_RUN_ID=name).stdout.readline() == "ready\n"
    each = processes.processes_of([Target(None, name) for name in names])
    try:
        assert [len(some) > 0 for some in each] == [True, True, True]
    finally:
        assert processes.end([Target(None, name) for name in names], grace=0) == [[], [], []]


def test_processes_that_obey_are_ended_without_waiting_for_the_grace(started):
    child = started("sleep 300 & echo ready; wait", LAUNCHER_RUN_ID=NAME)
    assert child.stdout.readline() == "ready\n"
    assert processes.end([Target(processes.identity(child.pid), NAME)], grace=3600) == [[]]


def test_processes_that_do_not_obey_are_killed_after_the_grace(started):
    child = started("trap '' TERM; echo ready; while :; do sleep 0.1; done", LAUNCHER_RUN_ID=NAME)
    assert child.stdout.readline() == "ready\n"
    began = time.monotonic()
    assert processes.end([Target(None, NAME)], grace=0.5) == [[]]
    assert time.monotonic() - began >= 0.5
    assert child.wait() == -signal.SIGKILL


def test_the_shell_outlives_its_children_long_enough_to_write_down_how_they_ended(started, tmp_path):
    child = started(f"LAUNCHER_RUN_ID={NAME} sleep 300 & echo ready; wait $!; echo $? >{tmp_path}/code; sleep 300")
    assert child.stdout.readline() == "ready\n"
    shell = processes.identity(child.pid)
    until(lambda: len(found(shell)) == 2)
    assert processes.end([Target(shell, NAME)], grace=0) == [[]]
    assert (tmp_path / "code").read_text() == "137\n"
    assert child.wait() == -signal.SIGKILL


def test_a_process_does_not_end_itself_though_it_carries_the_name():
    text = "from launcher.runs import processes\n"
    text += f"target = processes.Target(None, {NAME!r})\nprint(processes.end([target], 0))"
    environment = {**os.environ, "LAUNCHER_RUN_ID": NAME}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "[[]]\n"
