"""Which processes are a run's, and which go last; `executors/test_stopping.py` ends those of real run folders."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.runs import processes
from launcher.runs.processes import Identity, Target
from tests.launcher.run_folders import NAME, until


@pytest.fixture
def started():
    """Starts shell text in a session of its own, and returns once that prints "ready"; all is killed at the end."""
    children = []

    def start(text, **variables):
        child = subprocess.Popen(
            ["bash", "-c", text],
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        children.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in children:
        for process in processes.processes_of([Target(None, NAME)])[0]:
            os.kill(process.pid, signal.SIGKILL)
        child.kill()
        child.wait()
        child.stdout.close()


def pids(shell=None):
    return {process.pid for process in processes.processes_of([Target(shell, NAME)])[0]}


def test_a_process_is_known_by_pid_start_boot_and_host():
    me = processes.identity(os.getpid())
    fields = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()
    assert me == Identity(os.uname().nodename, processes.boot(), os.getpid(), int(fields[19]))
    assert processes.is_alive(me)
    for change in ({"pid": 2**22 + 1}, {"start": 1}, {"boot": "another"}, {"host": "another"}):
        assert not processes.is_alive(me._replace(**change)), change
    record = processes.to_json(me)
    assert processes.from_json(record) == me
    for value in (None, {}, {"host": "a"}, {**record, "pid": "x"}, {**record, "host": ""}):
        assert processes.from_json(value) is None, value


def test_a_command_name_may_hold_brackets_and_blanks(tmp_path):
    odd = tmp_path / "a) R (b c"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "300"])
    try:
        until(lambda: "R (b" in Path(f"/proc/{child.pid}/stat").read_text())
        assert processes.is_alive(processes.identity(child.pid))
    finally:
        child.kill()
        child.wait()


def test_a_runs_processes_are_its_session_its_name_and_their_children_and_not_those_of_another_run(started):
    started("echo ready; sleep 300", LAUNCHER_RUN_ID=f"{NAME}-001")
    until(lambda: pids() == set())
    child = started(f"""
        sleep 300 &
        LAUNCHER_RUN_ID={NAME} setsid bash -c 'env -i sleep 300 & echo ready; wait' &
        wait
    """)
    shell = processes.identity(child.pid)
    # The shell, its sleep, the worker in a session of its own, and the worker's child without any environment.
    until(lambda: len(pids(shell)) == 4)
    assert child.pid in pids(shell)


def test_what_a_killed_shell_leaves_is_known_by_the_runs_name_and_so_is_the_rest_of_its_session(started):
    child = started(f"(export LAUNCHER_RUN_ID={NAME}; exec sleep 300) & (sleep 300) & echo ready; wait")
    shell = processes.identity(child.pid)
    until(lambda: len(pids()) == 1)
    child.kill()
    child.wait()
    assert len(pids(shell)) == 2


def test_a_session_number_that_was_given_again_is_left_alone(started):
    stranger = started("sleep 300 & echo ready; wait")
    before = processes.identity(stranger.pid)._replace(start=1)
    assert pids(before) == set()
    assert processes.end([Target(before, NAME)], grace=0.2) == [[]]
    assert stranger.poll() is None


def test_the_shell_outlives_its_children_long_enough_to_record_how_they_ended(started, tmp_path):
    child = started(f"LAUNCHER_RUN_ID={NAME} sleep 300 & echo ready; wait $!; echo $? >{tmp_path}/code; sleep 300")
    shell = processes.identity(child.pid)
    until(lambda: len(pids(shell)) == 2)
    assert processes.end([Target(shell, NAME)], grace=0) == [[]]
    assert (tmp_path / "code").read_text() == "137\n"
    assert child.wait() == -signal.SIGKILL


def test_a_process_that_carries_the_name_does_not_end_itself():
    text = f"from launcher.runs import processes as p; print(p.end([p.Target(None, {NAME!r})], 0))"
    variables = {**os.environ, "LAUNCHER_RUN_ID": NAME}
    assert subprocess.check_output([sys.executable, "-c", text], text=True, env=variables) == "[[]]\n"
