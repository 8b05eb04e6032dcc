import contextlib
import os
import signal
import time

import pytest

from launcher.executors import stopping
from launcher.runs import processes, run_files, store
from launcher.runs.store import Run
from tests.launcher.run_folders import DEAF, NAME, STEPPING, WITHOUT_STOP, make, shell_of, start, state, submit, until

SWEEP = "20260103-000000-calm-lake"


def cancel(*folders, **options):
    return stopping.cancel([Run(str(folder.parent), folder.name) for folder in folders], **options)


def processes_left(folder):
    return processes.processes_of([processes.Target(None, folder.name)])[0]


def started(root, trainer, name=NAME, **plan):
    """A run whose trainer has printed its first line."""
    folder = make(root, name, trainer=trainer, **plan)
    child, log = start(folder), folder / "attempts/1/stdout.log"
    until(lambda: log.exists() and log.read_text())
    return folder, child


def test_a_trainer_that_is_asked_to_stop_saves_and_is_not_killed(root):
    folder, child = started(root, STEPPING)
    stopping.request_stop(folder)
    child.wait()
    assert state(folder).name == "stopped"
    assert state(folder).reason.startswith("on request, saved at step ")


@pytest.mark.parametrize(
    ("trainer", "grace", "code"), [(WITHOUT_STOP, 3600, 143), (DEAF, 0.5, 137)], ids=["by TERM", "by KILL"]
)
def test_a_run_that_does_not_stop_is_ended_after_the_grace(root, trainer, grace, code):
    folder, _ = started(root, trainer)
    messages = []
    ((seen, why_not),) = cancel(folder, stop_grace=0.3, term_grace=grace, say=messages.append)
    assert (seen.state.name, why_not) == ("cancelled", "")
    assert seen.state.exit_code in (code, None)  # its shell has a moment to write it
    assert processes_left(folder) == []
    assert len(messages) == 2 and "killing" in messages[1]


def test_a_trainer_that_saves_on_term_has_the_grace_to_finish(root):
    saving = "trap 'sleep 0.5; echo saved; exit 0' TERM; echo begun; while :; do sleep 0.1; done"
    folder, _ = started(root, saving)
    cancel(folder, stop_grace=0, term_grace=3600)
    assert (folder / "attempts/1/stdout.log").read_text() == "begun\nsaved\n"


def script_plan(stop_signal, **more):
    return {"schema": 1, "name": "train-o1", "script": {"file": "/train.py", "stop_signal": stop_signal}, **more}


def test_a_script_without_a_stop_signal_is_ended_at_once_beside_runs_that_are_asked(root):
    recipe, _ = started(root, WITHOUT_STOP)
    script, _ = started(root, WITHOUT_STOP, f"{NAME}-2", plan=script_plan("INT"))
    unasked, _ = started(root, WITHOUT_STOP, f"{NAME}-3", plan=script_plan(None))
    messages, states = [], []

    def say(text):
        messages.append(text)
        states.append([state(folder).name for folder in (recipe, script, unasked)])

    ended = cancel(recipe, script, unasked, stop_grace=2, term_grace=1, say=say)
    assert states[-1] == ["stopping", "stopping", "cancelled"]
    assert [(seen.state.name, why_not) for seen, why_not in ended] == [("cancelled", "")] * 3
    assert store.read_json(unasked / "cancelled").get("killed") is None
    assert store.read_json(script / "cancelled")["killed"] == "it did not end within 2 s and was killed"
    killed = "what has not ended in 2 s is killed (cancel --now kills at once)"
    assert messages == [
        f"asked 1 run to save and stop at the next step; {killed}",
        f"asked 1 script to stop, by SIGINT or job.should_stop(); {killed}",
        f"killing {unasked.name}",
        f"killing {recipe.name}, {script.name}",
    ]


def test_a_grace_is_the_longest_of_the_runs_that_can_be_asked(root):
    asked = 'if [ -e "$RUN/STOP" ]; then\n'
    recipe, _ = started(root, STEPPING.replace(asked, asked + "    sleep 1  # as where saving takes a while\n"))
    unasked, _ = started(root, WITHOUT_STOP, f"{NAME}-2", plan=script_plan(None, cluster={"stop_before": 120}))
    messages = []
    ((seen, _), _) = cancel(recipe, unasked, say=messages.append)
    assert seen.state.reason.startswith("on request, saved at step ")
    assert "what has not ended in 30 s" in messages[0]


def test_killing_leaves_a_true_state_even_if_the_shell_could_not_record_it(root):
    folder, child = started(root, DEAF)
    os.kill(shell_of(folder), signal.SIGSTOP)
    assert stopping.kill_all([folder]) == {}
    child.wait()
    assert store.read_json(folder / "status.json")["state"] == "running"
    assert state(folder)[:2] == ("cancelled", "killed on request")
    assert processes_left(folder) == []


def sessions_of(folder):
    found = set()
    for process in processes_left(folder):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile, as a sleep does
            found.add(os.getsid(process.pid))
    return found


def test_workers_in_sessions_of_their_own_are_killed_with_the_run(root):
    folder = make(root, trainer="setsid bash -c 'trap \"\" TERM; while :; do sleep 0.1; done' & wait")
    start(folder)
    until(lambda: len(sessions_of(folder)) > 1)
    assert stopping.kill_all([folder]) == {}
    assert processes_left(folder) == []


def test_processes_of_a_lost_run_are_ended_and_the_run_stays_lost(root):
    folder, child = started(root, WITHOUT_STOP)
    os.kill(shell_of(folder), signal.SIGKILL)
    child.wait()
    assert processes_left(folder) != []
    ((seen, _),) = cancel(folder)
    assert processes_left(folder) == []
    assert seen.state.name == "lost" and "left behind" not in seen.state.reason


def test_a_waiting_cell_is_cancelled_without_harm_to_the_others_and_never_starts(root):
    cells = [make(root, f"{SWEEP}-00{index}", trainer=STEPPING) for index in range(3)]
    driver = start(*cells)
    until(lambda: state(cells[0]).name == "running")
    cancel(cells[1])
    assert state(cells[1])[:2] == ("cancelled", "before it started")
    assert state(cells[0]).name == "running"
    stopping.request_stop(cells[0])
    until(lambda: state(cells[2]).name == "running")
    assert not (cells[1] / "metrics.jsonl").exists()
    cancel(cells[2])
    driver.wait()
    assert [state(cell).name for cell in cells] == ["stopped", "cancelled", "cancelled"]


def test_all_cells_of_a_sweep_are_ended_together(root):
    cells = [make(root, f"{SWEEP}-00{index}", trainer=DEAF) for index in range(4)]
    driver = start(*cells)
    until(lambda: state(cells[0]).name == "running")
    assert stopping.kill_all(cells) == {}
    driver.wait()
    assert {state(cell).name for cell in cells} == {"cancelled"}
    logs = [cell / "attempts/1/stdout.log" for cell in cells[1:]]
    assert not any(log.exists() and log.read_text() for log in logs), "none began as the one before it was killed"


def test_a_run_on_another_host_is_asked_to_stop_and_shown_with_its_host(root):
    folder, process = make(root), processes.Identity("n7", "another", 1, 1)
    submit(folder, process)
    status = {"state": "running", "attempt": 1, "process": processes.to_json(process)}
    store.write_json(folder / "status.json", status)
    ((seen, why_not),) = cancel(folder, stop_grace=0.1)
    assert (seen.state.name, why_not) == ("unreachable", "it runs on n7: cancel it there")
    assert run_files.load(str(folder))[2:4] == (True, True)
    stopping.clear(folder)
    assert run_files.load(str(folder))[2:4] == (False, False)


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_cancelling_a_run_at_any_moment_of_its_start_ends_it(root, moment):
    folder = make(root, trainer=WITHOUT_STOP)
    child = start(folder)
    time.sleep(moment)
    ((_, why_not),) = cancel(folder, now=True)
    child.wait()
    assert why_not == ""
    assert processes_left(folder) == []
    assert state(folder).name == "cancelled"


def test_a_run_that_is_resumed_may_be_requeued_as_often_as_a_new_one(root):
    folder = make(root)
    marker = folder / "attempts" / "1" / "requeued"
    marker.parent.mkdir(parents=True)
    marker.touch()
    stopping.clear(folder)
    assert not marker.exists()
