"""How often Slurm is asked: counted by stand-ins for its programs that note each call."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.commands import ls
from launcher.executors import backends, stopping
from launcher.executors.slurm import jobs, shared
from launcher.runs import processes, run_files, run_roots, store
from launcher.runs.schema import Submission
from launcher.runs.store import Run
from tests.launcher import run_folders
from tests.launcher.slurm.counted import Job, Programs, record, submitted

FOX = "20260102-030406-calm-fox"
RUNNING = {"state": "running"}


def age(seconds: float, of: str = "asked") -> None:
    """Make the shared answer, or another question, older."""
    (path,) = Path(run_roots.state_folder(), "slurm").glob("*.json")
    values = json.loads(path.read_text())
    store.write_json(path, {**values, of: values[of] - seconds})


def test_all_verbs_and_terminals_of_a_user_ask_a_cluster_once_in_an_interval(
    root: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = 2.0
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", str(interval))
    job, gone = submitted(root, status=RUNNING), submitted(root, 8, FOX, RUNNING)
    (gone.folder / "attempts/1/stdout.log").write_text("begun\n")
    programs.says(job.row("RUNNING"), "8|RUNNING|0:0\n")
    # Each asks about the job that squeue lacks: one that Slurm was not asked about yet is looked up at once.
    name = gone.folder.name
    verbs = [["watch", name], ["watch", name, job.folder.name], ["logs", "-f", name]]
    began = time.monotonic()
    terminals = [
        subprocess.Popen(run_folders.command(*words, f"run_root={root}"), stdout=subprocess.PIPE, text=True)
        for words in verbs
    ]
    try:
        assert all(terminal.stdout and terminal.stdout.readline() for terminal in terminals)
        many = programs.count() + 3
        run_folders.launcher("ls", f"run_root={root}", state_home=Path(os.environ["XDG_STATE_HOME"]))
        run_folders.until(lambda: job.look().name == "running" and programs.count() >= many, 60)
    finally:
        for terminal in terminals:
            terminal.terminate()
            terminal.communicate()
    intervals = (time.monotonic() - began) / interval
    assert programs.count("squeue") <= 1 + intervals
    assert 3 <= programs.count("sacct") <= 1 + intervals


def test_without_a_setting_the_interval_is_30_seconds(
    root: Path, programs: Programs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(root)
    programs.says(job.row("PENDING", "Resources"))
    began = time.time()
    for seconds in (0, 12, 29):
        monkeypatch.setattr(time, "time", lambda now=began + seconds: now)
        job.look()
        ls.main([f"run_root={root}"])
        assert f"the scheduler was asked {seconds}s ago" in capsys.readouterr().out
    ls.main([job.folder.name, f"run_root={root}"])
    assert "scheduler  asked 29s ago" in capsys.readouterr().out
    ls.main(["--json", f"run_root={root}"])
    assert json.loads(capsys.readouterr().out)[0]["scheduler_age"] == 29
    assert programs.count() == 1
    monkeypatch.setattr(time, "time", lambda: began + 30)
    job.look()
    assert programs.count() == 2


def test_a_last_word_in_status_json_ends_the_question_without_slurm(root: Path, programs: Programs) -> None:
    job = submitted(root, status={"state": "failed", "exit_code": 1})
    assert job.look().name == "failed"
    assert not backends.with_processes({str(job.folder): run_files.load(str(job.folder))})
    assert programs.count() == 0


def test_after_a_submission_there_is_one_look_at_once_and_one_two_seconds_later(root: Path, programs: Programs) -> None:
    first = submitted(root)
    programs.says(first.row("PENDING", "Resources"))
    assert first.look().reason == "waiting for free resources"
    second = submitted(root, 8, FOX)
    shared.changed()
    programs.says(first.row("RUNNING") + second.row("PENDING"))
    assert second.look()[:2] == ("queued", "accepted this moment")
    assert programs.count() == 1
    age(shared.SOON)
    assert [second.look().reason for _ in range(3)] == ["waiting"] * 3
    assert programs.count() == 2
    programs.says(first.row("RUNNING") + second.row("PENDING", "Priority"))
    time.sleep(shared.SOON + 0.1)
    assert [second.look().reason for _ in range(3)] == ["waiting: others go first"] * 3
    assert programs.count() == 3


def test_a_job_that_slurm_was_not_asked_about_is_looked_up_at_once_and_only_once(
    root: Path, programs: Programs
) -> None:
    first, second = submitted(root), submitted(root, 8, FOX)
    programs.says(first.row("RUNNING"))
    assert first.look().name == "queued"
    for _ in range(3):
        assert second.look().reason == "it never started: Slurm no longer knows job 8"
    assert (programs.count("squeue"), programs.count("sacct")) == (2, 1)


def test_a_verdict_of_slurm_is_asked_for_once_and_a_damaged_one_counts_as_none(root: Path, programs: Programs) -> None:
    job = submitted(root, status=RUNNING)
    store.write_json(job.folder / "verdict.json", {"schema": 1, "job": "7"})
    programs.says("", "7|NODE_FAIL|0:0\n")
    assert job.look().reason == "its node failed (job 7)"
    age(60)
    assert job.look().reason == "its node failed (job 7)"
    assert (programs.count("squeue"), programs.count("sacct")) == (2, 1)


def test_a_damaged_record_that_names_another_file_as_sbatchs_answer_names_no_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"7" * 10_000)
    for answer in (tmp_path / "pipe", tmp_path / "large", "/dev/zero", tmp_path, "a\0b", ""):
        assert jobs.job_of(Submission(answer=str(answer))) is None, answer


def test_an_interrupted_run_permits_one_immediate_look_and_one_that_writes_seldom_none(
    root: Path, programs: Programs
) -> None:
    job = submitted(root, status=RUNNING)
    programs.says(job.row("RUNNING"))
    for written in (200, 70, 62):
        for name in ("attempts/1/stdout.log", "status.json"):
            (job.folder / name).touch()
            os.utime(job.folder / name, (time.time() - written,) * 2)
        assert job.look().name == "running"
        age(8)
    assert programs.count() == 1
    job.writes(state="interrupted")
    programs.says(job.row("OUT_OF_MEMORY"))
    for _ in range(3):
        assert "more memory than it had asked for" in job.look().reason
    assert programs.count() == 2


def test_an_sbatch_without_an_answer_permits_one_look_although_nothing_can_be_noted(
    root: Path, programs: Programs
) -> None:
    job = Job(run_folders.make(root), 7)
    record(job.folder, root / "gone/sbatch.1.out")
    path = job.folder / "submission.json"
    values = json.loads(path.read_text())
    programs.says("")
    store.write_json(path, {**values, "process": processes.to_json(processes.identity(os.getpid()))})
    assert job.look()[:2] == ("unreachable", "sbatch has not answered yet")
    assert programs.count() == 0
    for damage in ({}, {}, {}, {"answer": None}, {"script": None}):
        store.write_json(path, {**values, **damage})
        assert "before Slurm had accepted it" in job.look().reason
    assert programs.count() == 1


def test_a_run_whose_sbatch_was_killed_is_not_called_lost_by_an_answer_that_is_older(
    root: Path, programs: Programs
) -> None:
    other, killed = submitted(root, 8, FOX), Job(run_folders.make(root), 7)
    programs.says(other.row("PENDING", "Resources"))
    assert other.look().name == "queued"
    shared.changed()
    record(killed.folder, killed.folder / "sbatch.1.out")
    programs.says(other.row("PENDING", "Resources") + killed.row("RUNNING"))
    assert killed.look()[:2] == ("unreachable", "Slurm has not been asked yet whether it accepted the job")
    age(3)
    assert killed.look().name == "queued"
    assert (killed.folder / "sbatch.1.out").read_text() == "7\n"


def test_a_run_that_started_or_was_requeued_since_the_last_look_is_shown_as_its_folder_says(
    root: Path, programs: Programs
) -> None:
    job = submitted(root)
    programs.says(job.row("PENDING", "Resources"))
    assert job.look().name == "queued"
    (job.folder / "attempts/1").mkdir(parents=True)
    job.writes(state="running")
    assert job.look().name == "running"
    job.writes(state="requeued", reason="to go on")
    assert job.look()[:2] == ("queued", "to go on")
    assert programs.count() == 1


def test_errors_double_the_time_to_the_next_look_and_a_submission_ends_that(root: Path, programs: Programs) -> None:
    job, interrupted = submitted(root), submitted(root, 8, FOX, RUNNING)
    programs.says("Unable to contact slurm controller", code=1)
    for failures, wait in ((1, 60), (2, 120), (3, 240), (4, 480), (5, 600)):
        assert job.look().name == "unreachable" and "Unable to contact" in job.look().reason
        assert programs.count() == failures
        age(wait - 5)
        interrupted.writes(state="interrupted")
        interrupted.look()
        job.look()
        assert programs.count() == failures
        age(6)
    job.look()
    assert programs.count() == 6
    shared.changed()
    programs.says(job.row("RUNNING"))
    time.sleep(shared.SOON + 0.1)
    assert job.look().name == "queued" and programs.count() == 7


def test_errors_of_sacct_double_the_time_to_its_next_question_while_squeue_is_asked(
    root: Path, programs: Programs
) -> None:
    job = submitted(root, status=RUNNING)
    programs.says("")
    programs.does("sacct", "echo no slurmdbd >&2; exit 1")
    for failures, wait in ((1, 60), (2, 120)):
        for seconds in (0, wait - 5):
            if programs.count():
                age(31)
                age(seconds, "accounts_asked")
            assert "no slurmdbd" in job.look().reason
            assert programs.count("sacct") == failures
        age(6, "accounts_asked")
    assert programs.count() == 4


def test_a_command_that_acts_on_a_state_asks_slurm_anew(root: Path, programs: Programs) -> None:
    job = submitted(root, status=RUNNING)
    programs.says(job.row("NODE_FAIL"))
    assert job.look().name == "failed"
    programs.says(job.row("PENDING", "BeginTime"))
    (seen,) = backends.states_of([Run(str(root), job.folder.name)], fresh=True)
    assert seen.state.name == "queued"


def test_two_launchers_that_find_the_answer_old_ask_once(root: Path, programs: Programs) -> None:
    job = submitted(root)
    programs.says(job.row("RUNNING"))
    job.look()
    age(60)
    (lock,) = Path(run_roots.state_folder(), "slurm").glob("*.lock")
    with open(lock, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        argv = run_folders.command("ls", f"run_root={root}")
        waiting = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(3)]
        time.sleep(2)
        assert programs.count() == 1
    assert [listing.wait() for listing in waiting] == [0, 0, 0]
    assert programs.count() == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"asked": null}', b"\xff", b'{"asked": 1e999}'])
def test_a_damaged_answer_is_asked_for_anew(root: Path, programs: Programs, damage: bytes) -> None:
    job = submitted(root)
    programs.says(job.row("PENDING", "Resources"))
    job.look()
    (path,) = Path(run_roots.state_folder(), "slurm").glob("*.json")
    path.write_bytes(damage)
    assert job.look().reason == "waiting for free resources"
    assert programs.count() == 2


def test_an_answer_from_before_the_clock_was_set_back_is_asked_for_anew(root: Path, programs: Programs) -> None:
    job = submitted(root)
    programs.says(job.row("RUNNING"))
    for _ in range(2):
        job.look()
        age(-60)
    assert programs.count() == 2


def test_where_the_answer_cannot_be_written_a_process_keeps_it(root: Path, programs: Programs) -> None:
    job = submitted(root)
    programs.says(job.row("PENDING", "Resources"))
    Path(run_roots.state_folder(), "slurm").write_text("in the way")
    for _ in range(3):
        assert job.look().reason == "waiting for free resources"
    assert programs.count() == 1


def test_cancel_takes_a_job_that_waits_out_of_the_queue_at_once(root: Path, programs: Programs) -> None:
    job = submitted(root)
    programs.says(job.row("PENDING", "Dependency"))
    home = Path(os.environ["XDG_STATE_HOME"])
    done = run_folders.launcher("cancel", job.folder.name, f"run_root={root}", state_home=home)
    assert programs.count("scancel") == 1
    assert "asked" not in done.stderr, "which would be waited for"
    assert job.look()[:2] == ("cancelled", "before it started")


def test_what_was_kept_of_an_id_before_a_crashed_controller_gave_it_again_counts_for_nothing(
    root: Path, programs: Programs
) -> None:
    job, other = submitted(root), submitted(root, 8, FOX)
    programs.says(other.row("RUNNING"), "7|NODE_FAIL|0:0\n")
    os.utime(job.folder / "sbatch.1.out", (time.time() - 60,) * 2)
    assert job.look().reason == "its node failed (job 7)"
    stopping.clear(job.folder)  # it is resumed
    answer = job.folder / "sbatch.2.out"
    answer.write_text("7\n")
    record(job.folder, answer)
    assert other.look().name == "queued"
    assert job.look()[:2] == ("queued", "accepted this moment")
    shared.changed()
    programs.says(job.row("PENDING", "Priority") + other.row("RUNNING"))
    age(shared.SOON)
    assert job.look().reason == "waiting: others go first"


@pytest.mark.parametrize(
    ("asked", "changed", "more", "due"),
    [
        (1001.0, 0.0, {}, False),
        (1001.5, 0.0, {}, True),
        (990.0, 0.0, {"after": 990.0}, False),
        (990.0, 0.0, {"after": 991.0}, True),
        (990.0, 0.0, {"signalled": 990.0}, False),
        (990.0, 0.0, {"signalled": 991.0}, True),
        (998.0, 996.0, {}, False),
        (998.0, 997.0, {}, True),
        (999.0, 998.0, {}, False),
        (970.0, 0.0, {}, True),
    ],
)
def test_a_question_is_due_by_the_times_of_the_answer_and_of_what_happened_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: float, changed: float, more: dict[str, float], due: bool
) -> None:
    answer = tmp_path / "answer.json"
    monkeypatch.delenv("LAUNCHER_ASK_EVERY")
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setitem(shared._noted, answer.with_suffix(".changed"), changed)
    assert shared._due(shared.Answer(asked), answer, (), **{"signalled": 0.0, "after": 0.0, **more}) is due


@pytest.mark.parametrize(
    ("failures", "asked", "after", "ended"),
    [(0, 901.0, 0.0, {"7"}), (1, 959.0, 900.0, set()), (1, 960.0, 900.0, {"7"}), (1, 901.0, 900.5, {"7"})],
)
def test_sacct_is_asked_at_once_or_twice_the_interval_after_it_failed_unless_a_command_needs_it(
    monkeypatch: pytest.MonkeyPatch, failures: int, asked: float, after: float, ended: set[str]
) -> None:
    monkeypatch.delenv("LAUNCHER_ASK_EVERY")
    before = shared.Answer(accounts_failures=failures, accounts_asked=900.0)
    assert shared._ended(before, shared.Answer(asked), {"7"}, after) == ended


def test_what_sacct_said_is_kept_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    monkeypatch.setattr(jobs, "listed", lambda conf: {})
    row = jobs.Row("COMPLETED", "None")
    kept = shared.Answer(accounted={"7": (10_000.0 - shared.KEPT, row), "8": (10_001.0 - shared.KEPT, row)})
    answer = shared._ask_queue(kept, (), None)
    assert (list(answer.accounted), answer.unanswered) == (["8"], frozenset())


def test_each_cluster_has_an_answer_of_its_own_and_the_one_of_the_environment_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/etc/one/slurm.conf")
    assert shared._path(None) == shared._path("/etc/one/slurm.conf") != shared._path("/etc/two/slurm.conf")
