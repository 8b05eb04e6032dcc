import os
import signal
import subprocess
import sys

import pytest

from launcher.executors import backends
from launcher.executors.backends import states_of
from launcher.executors.local import backend
from launcher.runs import processes, run_files, selection, store
from launcher.runs.processes import Identity
from launcher.runs.states import Liveness
from launcher.runs.store import Run
from tests.launcher.run_folders import NAME, finished, make, shell_of, start, state, submit, until

SWEEP = "20260103-000000-calm-lake"
TRUE = ("queued", "running", "done")
UNTIL_GO = "while [ ! -e $RUN/go ]; do sleep 0.05; done"


def seen(folder):
    return states_of([Run(str(folder.parent), folder.name)])


def cells(root, trainer, count=2):
    return [make(root, f"{SWEEP}-00{index}", trainer=trainer) for index in range(count)]


@pytest.fixture
def before_the_question(monkeypatch):
    """Does something once, after the files of runs were read and before their processes are looked for."""

    def do(event):
        ask, events = backend.liveness, [event]

        def late(asked, after):
            if events:
                events.pop()()
            return ask(asked)

        monkeypatch.setattr(backend, "liveness", late)

    return do


def test_a_run_whose_shell_was_killed_is_lost_and_its_children_are_named_until_they_are_gone_too(root):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    (left,) = until(lambda: processes.processes_of([processes.Target(None, NAME)])[0])
    shell = shell_of(folder)
    os.kill(shell, signal.SIGKILL)
    until(lambda: state(folder).name == "lost")  # though nobody has waited for the shell: it is a zombie
    child.wait()
    assert f"process {shell} is gone" in state(folder).reason
    assert f"left behind: process {left.pid}" in state(folder).reason
    assert backends.with_processes({str(folder): run_files.load(str(folder))}) == {str(folder)}
    os.kill(left.pid, signal.SIGKILL)
    until(lambda: "left behind" not in state(folder).reason)
    assert state(folder).name == "lost"


def test_the_states_of_a_run_from_start_to_end_are_only_true_ones(root):
    # Looked at as often as possible: between the files and the process table everything may change.
    for number in range(15):
        folder = make(root, f"20260102-0304{number:02}-brave-otter", trainer="true")
        child = start(folder)
        last = 0
        while TRUE[last] != "done":
            now = TRUE.index(state(folder).name)
            assert now >= last
            last = now
        child.wait()


def test_a_run_that_ends_between_the_reading_of_its_files_and_the_question_is_done(root, before_the_question):
    folder = make(root, trainer=UNTIL_GO)
    child = start(folder)
    shell_of(folder)
    before_the_question(lambda: ((folder / "go").touch(), child.wait()))
    assert state(folder).name == "done"


def test_a_cell_that_starts_as_its_driver_dies_is_running(root, before_the_question):
    first, second = cells(root, UNTIL_GO)
    driver = start(first, second)
    shell_of(first)

    def start_and_kill():
        (first / "go").touch()
        shell_of(second)
        driver.kill()
        driver.wait()

    before_the_question(start_and_kill)
    assert state(second).name == "running"


def test_cells_whose_driver_was_killed_are_lost_and_the_running_one_is_not(root):
    running, waiting = cells(root, "exec sleep 300")
    driver = start(running, waiting)
    until(lambda: state(running).name == "running")
    assert state(waiting).name == "queued"
    driver.kill()
    driver.wait()
    assert state(running).name == "running"
    assert state(waiting).name == "lost" and state(waiting).reason.startswith("it never started: ")


def test_a_run_of_another_host_is_unreachable_and_one_before_a_restart_of_this_host_is_lost(root):
    folder = make(root)
    submit(folder, Identity("n7", "another", 1, 1))
    assert state(folder)[:2] == ("unreachable", "it runs on n7, which can't be seen from here")
    me = processes.identity(os.getpid())
    submit(folder, me._replace(boot="the one before"))
    assert state(folder)[:2] == ("lost", f"it never started: {me.host} was restarted since")


def test_a_script_that_was_killed_while_it_found_out_where_it_is_is_known_by_its_submission(root):
    folder, me = make(root), processes.identity(os.getpid())
    nowhere = {"host": "", "boot": "", "pid": os.getpid(), "start": 1}
    store.write_json(folder / "status.json", {"state": "running", "attempt": 1, "process": nowhere})
    for process, name in ((me, "running"), (me._replace(start=1), "lost")):
        submit(folder, process)
        assert state(folder).name == name


def test_a_run_whose_launcher_was_killed_before_it_wrote_the_submission_is_known_by_its_status(root):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    shell_of(folder)
    (folder / "submission.json").unlink()
    assert state(folder).name == "running"
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) != []
    assert backends.end({str(folder): run_files.load(str(folder))}, 0) == {}
    child.wait()
    assert state(folder).name in ("failed", "lost")  # its shell has a moment to write its end
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) == []


def test_any_queue_can_be_added_and_is_asked_once_for_all_of_its_runs(root, monkeypatch):
    folders = cells(root, "true", 5)
    for folder in folders:
        store.write_json(folder / "submission.json", {"schema": 1, "queue": "pbs"})
    first = folders[0]
    assert state(first)[:2] == ("unreachable", "no queue is known here by the name of pbs")
    why_not = "its files don't say where it runs by the name of pbs"
    assert backends.end({str(first): run_files.load(str(first))}, 0) == {str(first): why_not}
    asked = []

    class Pbs:
        @staticmethod
        def liveness(files, after):
            asked.append(sorted(files))
            return {folder: Liveness("alive", "waits for resources") for folder in files}

        @staticmethod
        def end(files, grace):
            return {}

    monkeypatch.setitem(backends.BACKENDS, "pbs", "pbs_for_this_test")
    monkeypatch.setitem(sys.modules, "pbs_for_this_test", Pbs)
    rows = states_of(Run(str(folder.parent), folder.name) for folder in [*folders, finished(root)])
    assert [row.state.name for row in rows] == ["queued"] * 5 + ["done"]
    assert asked == [[str(folder) for folder in folders]]


def test_the_marker_of_a_run_that_is_being_submitted_or_was_resumed_meanwhile_stays(root):
    backends.settle(seen(make(root)))
    assert selection.unfinished([str(root)]) == [Run(str(root), NAME)]
    old = seen(finished(root, f"{NAME}-001"))
    store.mark_unfinished(root, f"{NAME}-001")
    alive = subprocess.Popen(["sleep", "300"])
    try:
        submit(old[0].run.folder, processes.identity(alive.pid), first_attempt=2)
        backends.settle(old)
        assert selection.unfinished([str(root)]) == [Run(str(root), NAME), old[0].run]
    finally:
        alive.kill()
        alive.wait()


@pytest.mark.parametrize("log", [False, True], ids=["", "made anew by Slurm for the log of its job"])
def test_the_marker_of_a_run_whose_folder_was_deleted_goes(root, log):
    make(root).rename(root / "elsewhere")
    if log:
        (root / NAME).mkdir()
        (root / NAME / "launch.log").touch()
    (lost,) = seen(root / NAME)
    assert lost.state[:2] == ("lost", "its folder is gone")
    backends.settle([lost])
    assert selection.unfinished([str(root)]) == []
