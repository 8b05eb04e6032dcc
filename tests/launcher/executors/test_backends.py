import os
import signal
import subprocess

import pytest

from launcher.executors import backends
from launcher.executors.backends import look
from launcher.executors.local import backend
from launcher.runs import processes, selection, store
from launcher.runs.states import Liveness
from launcher.runs.store import Run
from tests.launcher.run_folders import NAME, STEPPING, finished, make, shell_of, start, state, submit, until

SWEEP = "20260103-000000-calm-lake"


def seen(folder):
    return look([Run(str(folder.parent), folder.name)])


@pytest.mark.parametrize("waited_for", [True, False], ids=["reaped", "a zombie"])
def test_a_run_whose_shell_was_killed_is_lost_and_never_shown_as_running(root, waited_for):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    pid = shell_of(folder)
    os.kill(pid, signal.SIGKILL)
    if waited_for:
        child.wait(60)
    until(lambda: state(folder).name != "running")
    assert state(folder).name == "lost"
    assert f"process {pid} is gone" in state(folder).reason
    child.wait(60)


def test_a_killed_shells_children_are_named_until_they_are_gone_too(root):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    (left,) = until(lambda: processes.processes_of([processes.Target(None, NAME)])[0])
    os.kill(shell_of(folder), signal.SIGKILL)
    child.wait(60)
    assert f"left behind: process {left.pid}" in state(folder).reason
    assert backends.with_processes({str(folder): store.load(str(folder))}) == {str(folder)}
    os.kill(left.pid, signal.SIGKILL)
    until(lambda: "left behind" not in state(folder).reason)
    assert state(folder).name == "lost"


def test_the_states_of_a_run_from_start_to_end_are_only_true_ones(root):
    # Looked at as often as possible: between the files and the process table everything may change.
    for number in range(15):
        folder = make(root, f"20260102-0304{number:02}-brave-otter", trainer="true")
        child = start(folder)
        names = []
        while not names or names[-1] != "done":
            names.append(state(folder).name)
            assert names[-1] in ("queued", "running", "done"), names
        assert [name for name, before in zip(names[1:], names, strict=False) if name != before] in (
            ["done"],
            ["running", "done"],
            [],
            ["running"],
        )
        child.wait(60)


def test_a_run_that_ends_between_the_reading_of_its_files_and_the_question_is_done(root, monkeypatch):
    folder = make(root, trainer="while [ ! -e $RUN/go ]; do sleep 0.05; done")
    child = start(folder)
    shell_of(folder)
    ask = backend.liveness

    def late(asked, after):
        (folder / "go").touch()
        child.wait(60)
        return ask(asked)

    monkeypatch.setattr(backend, "liveness", late)
    assert state(folder).name == "done"


def test_a_cell_that_starts_as_its_driver_dies_is_running(root, monkeypatch):
    cells = [
        make(root, f"{SWEEP}-00{index}", trainer="while [ ! -e $RUN/go ]; do sleep 0.05; done") for index in (0, 1)
    ]
    driver = start(*cells)
    shell_of(cells[0])
    ask = backend.liveness

    def late(asked, after):
        if driver.returncode is None:
            (cells[0] / "go").touch()
            shell_of(cells[1])
            driver.kill()
            driver.wait(60)
        return ask(asked)

    monkeypatch.setattr(backend, "liveness", late)
    assert state(cells[1]).name == "running"


def test_a_sweeps_cells_wait_for_their_driver_one_after_another(root):
    cells = [
        make(root, f"{SWEEP}-00{index}", trainer="while [ ! -e $RUN/go ]; do sleep 0.05; done") for index in (0, 1)
    ]
    child = start(*cells)
    until(lambda: state(cells[0]).name == "running")
    assert state(cells[1]).name == "queued"
    (cells[0] / "go").touch()
    until(lambda: state(cells[1]).name == "running")
    assert state(cells[0]).name == "done"
    (cells[1] / "go").touch()
    child.wait(60)
    assert state(cells[1]).name == "done"


def test_cells_whose_driver_was_killed_are_lost_and_the_running_one_is_not(root):
    cells = [make(root, f"{SWEEP}-00{index}", trainer="exec sleep 300") for index in (0, 1)]
    child = start(*cells)
    until(lambda: state(cells[0]).name == "running")
    child.kill()
    child.wait(60)
    assert state(cells[0]).name == "running"
    assert state(cells[1]).name == "lost"
    assert state(cells[1]).reason.startswith("it never started: ")


def test_a_run_of_another_host_is_unreachable_and_not_lost(root):
    folder = make(root)
    submit(folder, processes.Identity("n7", "another", 1, 1))
    assert state(folder).name == "unreachable"
    assert state(folder).reason == "it runs on n7, which can't be seen from here"


def test_a_run_of_a_queue_that_is_not_known_here_is_unreachable(root):
    folder = make(root)
    store.write_json(folder / "submission.json", {"schema": 1, "queue": "pbs"})
    assert (state(folder).name, state(folder).reason) == ("unreachable", "no queue is known here by the name of pbs")
    assert backends.end({str(folder): store.load(str(folder))}, 0) == {
        str(folder): "its files don't say where it runs by the name of pbs"
    }


def test_a_script_that_was_killed_while_it_found_out_where_it_is_is_known_by_its_submission(root):
    folder = make(root)
    submit(folder, processes.identity(os.getpid()))
    nowhere = {"host": "", "boot": "", "pid": os.getpid(), "start": 1}
    store.write_json(folder / "status.json", {"state": "running", "attempt": 1, "process": nowhere})
    assert state(folder).name == "running"
    submit(folder, processes.identity(os.getpid())._replace(start=1))
    assert state(folder).name == "lost"


def test_runs_before_a_restart_of_the_machine_are_lost(root):
    folder = make(root)
    me = processes.identity(os.getpid())
    submit(folder, me._replace(boot="the one before"))
    assert state(folder).reason == f"it never started: {me.host} was restarted since"


def test_a_run_whose_launcher_was_killed_before_it_wrote_the_submission_is_known_by_its_status(root):
    folder = make(root, trainer="exec sleep 300")
    child = start(folder)
    shell_of(folder)
    (folder / "submission.json").unlink()
    assert state(folder).name == "running"
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) != []
    assert backends.end({str(folder): store.load(str(folder))}, 0) == {}
    child.wait(60)
    assert state(folder).name in ("failed", "lost")  # its shell has a moment to write its end
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) == []


def test_any_queue_can_be_added_and_is_asked_once_for_all_of_its_runs(root, monkeypatch):
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
    monkeypatch.setitem(__import__("sys").modules, "pbs_for_this_test", Pbs)
    folders = [make(root, f"{SWEEP}-00{index}") for index in range(5)]
    for folder in folders:
        store.write_json(folder / "submission.json", {"schema": 1, "queue": "pbs"})
    finished(root)
    seen_all = look(Run(str(each.parent), each.name) for each in [*folders, root / NAME])
    assert [each.state.name for each in seen_all] == ["queued"] * 5 + ["done"]
    assert asked == [[str(folder) for folder in folders]]


def test_the_marker_goes_once_the_run_was_seen_finished(root):
    folder = make(root, trainer=STEPPING)
    child = start(folder)
    shell_of(folder)
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) != []
    (folder / "STOP").touch()
    child.wait(60)
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) == []


def test_the_marker_of_a_run_that_is_being_submitted_stays(root):
    folder = make(root)
    backends.settle(seen(folder))
    assert selection.unfinished([str(root)]) == [Run(str(root), NAME)]


def test_the_marker_of_a_run_that_was_resumed_meanwhile_stays(root):
    folder = finished(root)
    old = seen(folder)
    store.mark_unfinished(root, NAME)
    me = subprocess.Popen(["sleep", "300"])
    try:
        submit(folder, processes.identity(me.pid), first_attempt=2)
        backends.settle(old)
        assert selection.unfinished([str(root)]) == [Run(str(root), NAME)]
    finally:
        me.kill()
        me.wait()


def test_the_marker_of_a_run_whose_folder_was_deleted_goes(root):
    make(root).rename(root / "elsewhere")
    (lost,) = seen(root / NAME)
    assert (lost.state.name, lost.state.reason) == ("lost", "its folder is gone")
    backends.settle([lost])
    assert selection.unfinished([str(root)]) == []
