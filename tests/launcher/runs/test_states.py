import pytest

from launcher.admit import Refused
from launcher.runs.decode import admitted
from launcher.runs.ownership import Owner
from launcher.runs.run_files import Files
from launcher.runs.schema import Identity, Status, Stopped, Submission
from launcher.runs.states import (
    FINISHED,
    SILENT,
    Liveness,
    State,
    answering,
    judge,
    judge_other_users,
    needs_liveness,
    status_of,
    waits_for,
)

SUBMITTED = Submission(queue="direct", first_attempt=1)
ALIVE = Liveness("alive")
GONE = Liveness("gone", "process 7 is gone")
UNKNOWN = Liveness("unknown", "it runs on n7")
OUT_OF_MEMORY = Liveness("gone", "out of memory", "failed")
BY_SLURM = Liveness("gone", "cancelled by root", "cancelled")


def status(state, **more):
    return Status(**{"state": state, "attempt": 1, "reason": "", **more})


def files(state=None, **more):
    return Files(submission=SUBMITTED, status=status(state) if state else None, **more)


def again(state):
    """Submitted again after an attempt that ended so, and not started since."""
    submission = Submission(queue="slurm", first_attempt=2)
    return Files(submission=submission, status=status(state))


SAVED = Stopped(step=12)
LIMITED = Stopped(step=12, why="time limit")
UNSAVED = Stopped(why="time limit", saved=False)
ENDED_FROM_OUTSIDE = Files(submission=SUBMITTED, status=status("interrupted", reason="preempted"))
NOT_RESTARTED = Files(
    submission=SUBMITTED,
    status=status("failed", reason="exit code 1; not restarted: 3 of 3 used"),
    failure="OSError",
)

TABLE = [
    # waiting for its turn
    (files(), ALIVE, "queued", ""),
    (files(), Liveness("alive", "waits for resources"), "queued", "waits for resources"),
    (files(), GONE, "lost", "it never started: process 7 is gone"),
    # resumed, in vain
    (again("done"), ALIVE, "queued", ""),
    (again("done"), GONE, "lost", "it never started: process 7 is gone; its attempt before was done"),
    (again("done"), BY_SLURM, "cancelled", "cancelled by root"),
    (again("interrupted"), GONE, "lost", "it never started: process 7 is gone"),
    (files(), UNKNOWN, "unreachable", "it runs on n7"),
    (files(), OUT_OF_MEMORY, "failed", "out of memory"),
    (files(), BY_SLURM, "cancelled", "cancelled by root"),
    (files(), Liveness("gone", "", "failed"), "failed", SILENT),
    (files(cancelled=True), None, "cancelled", "before it started"),
    (files(cancelled=True, stop=True), None, "cancelled", "before it started"),
    (files(stop=True), ALIVE, "stopping", "before it starts"),
    (files(stop=True), GONE, "stopped", "before it started"),
    (files("queued"), ALIVE, "queued", ""),
    (
        Files(submission=SUBMITTED, status=status("queued", reason="waiting for GPUs")),
        ALIVE,
        "queued",
        "waiting for GPUs",
    ),
    (files("queued"), GONE, "lost", "it was waiting, and process 7 is gone"),
    (
        Files(submission=SUBMITTED, status=status("queued", reason="waiting for GPUs")),
        GONE,
        "lost",
        "it was waiting for GPUs, and process 7 is gone",
    ),
    # running
    (files("running"), ALIVE, "running", ""),
    (files("running", stop=True), ALIVE, "stopping", "asked to stop"),
    (files("running", stop=True, stop_why="preemption"), ALIVE, "stopping", "asked to stop for preemption"),
    (files("running", stop=True, cancelled=True, stop_why="preemption"), ALIVE, "stopping", "cancelled"),
    (files("running"), UNKNOWN, "unreachable", "it runs on n7"),
    (files("running"), None, "unreachable", "nothing is known of its processes"),
    # said running, and is not
    (files("running"), GONE, "lost", "it was running, and process 7 is gone"),
    (files("running", stop=True), GONE, "lost", "it was running, and process 7 is gone"),
    (files("running", cancelled=True), GONE, "cancelled", "killed on request"),
    (files("running", cancelled=True, saved=SAVED), GONE, "cancelled", "on request, saved at step 12"),
    (files("running", saved=SAVED), GONE, "stopped", "on request, saved at step 12; process 7 is gone"),
    (files("running", saved=LIMITED), GONE, "stopped", "time limit, saved at step 12; process 7 is gone"),
    (files("running", saved=UNSAVED), GONE, "stopped", "time limit; process 7 is gone"),
    (files("running"), OUT_OF_MEMORY, "failed", "out of memory"),
    (files("running"), Liveness("gone", "", "failed"), "failed", "its script was killed"),
    (ENDED_FROM_OUTSIDE, GONE, "failed", "preempted"),
    (
        ENDED_FROM_OUTSIDE._replace(status=status("running", reason="preempted")),
        GONE,
        "lost",
        "it was running, and process 7 is gone",
    ),
    (files("running"), BY_SLURM, "cancelled", "cancelled by root"),
    # the folder's last word
    (files("done"), None, "done", ""),
    (files("done", cancelled=True), None, "done", ""),
    (files("done", stop=True), None, "done", ""),
    (files("failed"), None, "failed", ""),
    (files("failed", failure="OSError: No space left on device"), None, "failed", "OSError: No space left on device"),
    (NOT_RESTARTED, None, "failed", "OSError; not restarted: 3 of 3 used"),
    (
        NOT_RESTARTED._replace(status=status("failed", reason="exit code 1; the kernel killed a process")),
        None,
        "failed",
        "OSError; the kernel killed a process",
    ),
    (NOT_RESTARTED._replace(status=status("failed", reason="exit code 1")), None, "failed", "OSError"),
    (NOT_RESTARTED._replace(failure=""), None, "failed", "exit code 1; not restarted: 3 of 3 used"),
    (files("failed", cancelled=True), None, "cancelled", "on request"),
    (files("stopped", saved=SAVED), None, "stopped", "on request, saved at step 12"),
    (files("stopped", saved=SAVED, cancelled=True), None, "cancelled", "on request, saved at step 12"),
    (files("cancelled"), None, "cancelled", ""),
    (Files(submission=SUBMITTED, status=status("cancelled", reason="cancelled")), None, "cancelled", ""),
    (files("cancelled", saved=SAVED), None, "cancelled", "on request, saved at step 12"),
    # not whole
    (Files(), None, "lost", "it was never submitted: the launcher ended before"),
    (Files(exists=False), None, "lost", "its folder is gone"),
    (files(damaged=("status.json",)), ALIVE, "unreachable", "status.json can't be read"),
    (files(damaged=("status.json",)), GONE, "lost", "status.json can't be read"),
    (Files(damaged=("submission.json",)), None, "lost", "submission.json can't be read"),
    (
        Files(status=status("running"), damaged=("submission.json",)),
        None,
        "unreachable",
        "submission.json can't be read",
    ),
    (Files(status=status("done"), damaged=("submission.json",)), None, "done", ""),
]


@pytest.mark.parametrize(("seen", "liveness", "name", "reason"), TABLE)
def test_a_run_is_in_the_state_that_its_files_and_processes_say(seen, liveness, name, reason):
    state = judge(seen, liveness)
    assert (state.name, state.reason) == (name, reason)
    assert state.finished == (name in FINISHED)
    asked = name not in FINISHED or liveness is not None
    assert needs_liveness(seen) == asked or seen.damaged or not seen.exists
    if name in ("running", "queued", "stopping"):
        assert liveness is not None and liveness.life == "alive"
    assert reason or name not in ("lost", "unreachable")
    written_by_script = seen.status is not None and seen.status.state == name
    assert reason or name not in ("failed", "cancelled") or written_by_script


def test_the_scripts_own_reason_and_times_are_kept():
    last = status("failed", attempt=3, exit_code=137, reason="killed", started="a", ended="b", before=9)
    state = judge(Files(submission=SUBMITTED, status=last), None)
    assert tuple(state) == ("failed", "killed", 3, 137, "a", "b", 9)


@pytest.mark.parametrize("last", ["done", "failed", "stopped", "cancelled"])
def test_a_resumed_run_is_queued_until_its_new_attempt_speaks(last):
    resumed = Files(submission=SUBMITTED._replace(first_attempt=2), status=status(last))
    assert status_of(resumed) is None and needs_liveness(resumed)
    assert judge(resumed, ALIVE).name == "queued"
    assert judge(resumed, GONE).name == "lost"
    spoken = resumed._replace(status=status("running", attempt=2))
    assert judge(spoken, ALIVE).name == "running"


def test_a_queued_run_waits_for_the_runs_that_its_reason_names_and_no_other_does():
    waiting = State("queued", "waiting for calm-fox, wise-oasis, which it comes after")
    assert waits_for(waiting) == ["calm-fox", "wise-oasis"]
    assert waits_for(waiting._replace(name="lost")) == waits_for(State("queued", "waits for resources")) == []


HERE = Identity("n1", "boot-1", 7, 100)


def test_the_process_is_the_shell_of_the_run_once_it_has_written_who_it_is():
    starting = Files(submission=SUBMITTED._replace(process=HERE))
    assert answering(starting) == HERE
    shell = HERE._replace(pid=8)
    assert answering(starting._replace(status=status("running", process=shell))) == shell
    assert answering(starting._replace(status=status("running", process=HERE._replace(boot="")))) == HERE
    assert answering(Files(status=status("running"))) is None


@pytest.mark.parametrize(
    ("owner", "says"),
    [
        (Owner(False, "ann"), "it is ann's, and only ann can query its state"),
        (Owner(False, "uid 9", "who it is can't be known"), "who it is can't be known"),
    ],
)
def test_another_users_run_has_an_end_or_is_unreachable(owner, says):
    state = judge_other_users(files("running", owner=owner))
    assert (state.name, state.reason) == ("unreachable", f"{says}; its own files say running")
    assert judge_other_users(Files(owner=owner)).reason == says
    assert judge_other_users(files("done", owner=owner)).name == "done"


def test_a_state_that_is_admitted_has_an_exit_code_of_the_systems():
    assert admitted(State, ["failed", "", 1, 2**31 - 1, None, None, 0], "a state").exit_code == 2**31 - 1
    for code in (2**31, -(2**31) - 1):
        with pytest.raises(Refused):
            admitted(State, ["failed", "", 1, code, None, None, 0], "a state")
