"""How often Slurm is asked: counted by stand-ins for its programs that note each call."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from launcher.commands import ls
from launcher.executors import backends, stopping
from launcher.executors.local import start
from launcher.executors.slurm import jobs, shared
from launcher.runs import run_roots, store
from launcher.runs.schema import Submission
from launcher.runs.states import State
from launcher.runs.store import Run
from tests.launcher import run_folders
from tests.launcher.slurm.counted import Cluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = Cluster(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{found.folder}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.delenv("LAUNCHER_ASK_EVERY", raising=False)
    yield found
    shared._own.clear()
    shared._noted.clear()


def submitted(root: Path, job: int, name: str = run_folders.NAME, status: Mapping[str, object] | None = None) -> Path:
    """The folder of a run that sbatch accepted as that job."""
    folder = run_folders.make(root, name)
    (folder / "sbatch.1.out").write_text(f"{job}\n")
    start.record_submission(
        folder, queue="slurm", first_attempt=1, script=f"{folder}/run.sh", answer=str(folder / "sbatch.1.out")
    )
    if status is not None:
        (folder / "attempts/1").mkdir(parents=True)
        store.write_json(folder / "status.json", {"schema": 1, "attempt": 1, **status})
        os.utime(folder / "status.json", (time.time() - 5, time.time() - 5))
    return folder


def row(folder: Path, job: int, state: str, reason: str = "None") -> str:
    return f"{job}|{state}|{reason}|{folder}/run.sh\n"


def state(folder: Path) -> State:
    return backends.look([Run(str(folder.parent), folder.name)])[0].state


def test_all_verbs_and_terminals_of_a_user_ask_a_cluster_once_in_an_interval(
    root: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = 2.0
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", str(interval))
    folder = submitted(root, 7, status={"state": "running"})
    gone = submitted(root, 8, "20260102-030406-calm-fox", status={"state": "running"})
    (gone / "attempts/1/stdout.log").write_text("begun\n")
    cluster.says(row(folder, 7, "RUNNING"), "8|RUNNING|\n")
    # Each asks about the job that squeue lacks: one that Slurm was not asked about yet is looked up at once.
    verbs = [["watch", gone.name], ["watch", gone.name, folder.name], ["logs", "-f", gone.name]]
    began = time.monotonic()
    terminals = [
        subprocess.Popen(run_folders.command(*words, f"run_root={root}"), stdout=subprocess.PIPE, text=True)
        for words in verbs
    ]
    try:
        assert all(terminal.stdout and terminal.stdout.readline() for terminal in terminals)
        many = cluster.calls() + 3
        run_folders.launcher("ls", f"run_root={root}", state_home=Path(os.environ["XDG_STATE_HOME"]))
        run_folders.until(lambda: state(folder).name == "running" and cluster.calls() >= many, 60)
    finally:
        for terminal in terminals:
            terminal.terminate()
            terminal.communicate()
    intervals = (time.monotonic() - began) / interval
    assert cluster.calls("squeue") <= 1 + intervals
    assert 3 <= cluster.calls("sacct") <= 1 + intervals


def test_without_a_setting_the_interval_is_30_seconds(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Resources"))
    state(folder)
    age(29)
    state(folder)
    assert cluster.calls() == 1
    age(2)
    state(folder)
    assert cluster.calls() == 2


def test_a_last_word_in_status_json_ends_the_question_without_slurm(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "failed", "exit_code": 1})
    assert state(folder).name == "failed"
    assert not backends.with_processes({str(folder): store.load(str(folder))})
    assert cluster.calls() == 0


def test_a_listing_shows_how_old_the_answer_is(
    root: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Resources"))
    state(folder)
    age(12)
    ls.main([f"run_root={root}"])
    assert "the scheduler was asked 12s ago" in capsys.readouterr().out
    ls.main([folder.name, f"run_root={root}"])
    assert "scheduler  asked 12s ago" in " ".join(capsys.readouterr().out.split("\n"))
    ls.main(["--json", f"run_root={root}"])
    assert 12 <= json.loads(capsys.readouterr().out)[0]["scheduler_age"] < 15
    assert cluster.calls() == 1


def age(seconds: float) -> None:
    """Make the shared answer older."""
    (path,) = Path(run_roots.state_folder(), "slurm").glob("*.json")
    values = json.loads(path.read_text())
    store.write_json(path, {**values, "asked": values["asked"] - seconds})


def test_after_a_submission_there_is_one_look_at_once_and_one_two_seconds_later(root: Path, cluster: Cluster) -> None:
    first = submitted(root, 7)
    cluster.says(row(first, 7, "PENDING", "Resources"))
    assert state(first).reason == "waiting for free resources"
    second = submitted(root, 8, "20260102-030406-calm-fox")
    shared.changed()
    cluster.says(row(first, 7, "RUNNING") + row(second, 8, "PENDING"))
    assert state(second)[:2] == ("queued", "accepted this moment")
    assert cluster.calls() == 1
    age(shared.SOON)
    for _ in range(3):
        assert state(second).reason == "waiting"
    assert cluster.calls() == 2
    cluster.says(row(first, 7, "RUNNING") + row(second, 8, "PENDING", "Priority"))
    time.sleep(shared.SOON + 0.1)
    for _ in range(3):
        assert state(second).reason == "waiting: others go first"
    assert cluster.calls() == 3


def test_a_job_that_slurm_was_not_asked_about_is_looked_up_at_once_and_only_once(root: Path, cluster: Cluster) -> None:
    first, second = submitted(root, 7), submitted(root, 8, "20260102-030406-calm-fox")
    cluster.says(row(first, 7, "RUNNING"))
    assert state(first).name == "queued"
    for _ in range(3):
        assert state(second).reason == "it never started: Slurm no longer knows job 8"
    assert (cluster.calls("squeue"), cluster.calls("sacct")) == (2, 1)


def test_a_verdict_of_slurm_is_asked_for_once(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "running"})
    cluster.says("", "7|NODE_FAIL|\n")
    assert state(folder).reason == "its node failed (job 7)"
    age(60)
    assert state(folder).reason == "its node failed (job 7)"
    assert (cluster.calls("squeue"), cluster.calls("sacct")) == (2, 1)


def test_a_damaged_verdict_counts_as_none(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "running"})
    store.write_json(folder / "verdict.json", {"schema": 1, "job": "7"})
    cluster.says(row(folder, 7, "NODE_FAIL"))
    assert state(folder).reason == "its node failed (job 7)"


def test_a_damaged_record_that_names_another_file_as_sbatchs_answer_names_no_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"7" * 10_000)
    for answer in (tmp_path / "pipe", tmp_path / "large", "/dev/zero", tmp_path, "a\0b", ""):
        assert jobs.job_of(Submission(answer=str(answer))) is None, answer


def test_an_interrupted_run_permits_one_immediate_look(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "running"})
    cluster.says(row(folder, 7, "RUNNING"))
    assert state(folder).name == "running"
    age(20)
    store.write_json(folder / "status.json", {"schema": 1, "attempt": 1, "state": "interrupted"})
    cluster.says(row(folder, 7, "OUT_OF_MEMORY"))
    for _ in range(3):
        assert "more memory than it had asked for" in state(folder).reason
    assert cluster.calls() == 2


def test_runs_that_write_seldom_permit_no_further_looks(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "running"})
    cluster.says(row(folder, 7, "RUNNING"))
    for written in (200, 70, 62):
        for name in ("attempts/1/stdout.log", "status.json"):
            (folder / name).touch()
            os.utime(folder / name, (time.time() - written,) * 2)
        assert state(folder).name == "running"
        age(10)
    assert cluster.calls() == 1


def test_an_sbatch_without_an_answer_permits_one_look_although_nothing_can_be_noted(
    root: Path, cluster: Cluster
) -> None:
    folder = run_folders.make(root, run_folders.NAME)
    start.record_submission(
        folder, queue="slurm", first_attempt=1, script=f"{folder}/run.sh", answer=str(root / "gone/sbatch.1.out")
    )
    submission = json.loads((folder / "submission.json").read_text())
    store.write_json(folder / "submission.json", {**submission, "process": None})
    cluster.says("")
    for _ in range(3):
        assert "before Slurm had accepted it" in state(folder).reason
    assert cluster.calls() == 1


def test_a_run_that_started_or_was_requeued_since_the_last_look_is_shown_as_its_folder_says(
    root: Path, cluster: Cluster
) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Resources"))
    assert state(folder).name == "queued"
    (folder / "attempts/1").mkdir(parents=True)
    store.write_json(folder / "status.json", {"schema": 1, "attempt": 1, "state": "running"})
    assert state(folder).name == "running"
    store.write_json(folder / "status.json", {"schema": 1, "attempt": 1, "state": "requeued", "reason": "to go on"})
    assert state(folder)[:2] == ("queued", "to go on")
    assert cluster.calls() == 1


def test_errors_double_the_time_to_the_next_look_and_a_submission_ends_that(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7)
    cluster.says("Unable to contact slurm controller", code=1)
    interrupted = submitted(root, 8, "20260102-030406-calm-fox", status={"state": "running"})
    for failures, wait in ((1, 60), (2, 120), (3, 240), (4, 480), (5, 600)):
        found = state(folder)
        assert found.name == "unreachable" and "Unable to contact" in found.reason
        assert cluster.calls() == failures
        age(wait - 5)
        store.write_json(interrupted / "status.json", {"schema": 1, "attempt": 1, "state": "interrupted"})
        state(interrupted)
        state(folder)
        assert cluster.calls() == failures
        age(6)
    state(folder)
    assert cluster.calls() == 6
    shared.changed()
    cluster.says(row(folder, 7, "RUNNING"))
    time.sleep(shared.SOON + 0.1)
    assert state(folder).name == "queued" and cluster.calls() == 7


def test_a_command_that_acts_on_a_state_asks_slurm_anew(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7, status={"state": "running"})
    cluster.says(row(folder, 7, "NODE_FAIL"))
    assert state(folder).name == "failed"
    cluster.says(row(folder, 7, "PENDING", "BeginTime"))
    (seen,) = backends.look([Run(str(root), folder.name)], fresh=True)
    assert seen.state.name == "queued"


def test_two_launchers_that_find_the_answer_old_ask_once(root: Path, cluster: Cluster, tmp_path: Path) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "RUNNING"))
    state(folder)
    age(60)
    (lock,) = Path(run_roots.state_folder(), "slurm").glob("*.lock")
    with open(lock, "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        argv = run_folders.command("ls", f"run_root={root}")
        waiting = [subprocess.Popen(argv, stdout=subprocess.DEVNULL) for _ in range(3)]
        time.sleep(2)
        assert cluster.calls() == 1
    assert [each.wait(30) for each in waiting] == [0, 0, 0]
    assert cluster.calls() == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"asked": null}', b"\xff", b'{"asked": 1e999}'])
def test_a_damaged_answer_is_asked_for_anew(root: Path, cluster: Cluster, damage: bytes) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Resources"))
    state(folder)
    (path,) = Path(run_roots.state_folder(), "slurm").glob("*.json")
    path.write_bytes(damage)
    assert state(folder).reason == "waiting for free resources"
    assert cluster.calls() == 2


def test_where_the_answer_cannot_be_written_a_process_keeps_it(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Resources"))
    Path(run_roots.state_folder(), "slurm").write_text("in the way")
    for _ in range(3):
        assert state(folder).reason == "waiting for free resources"
    assert cluster.calls() == 1


def test_cancel_takes_a_job_that_waits_out_of_the_queue_at_once(root: Path, cluster: Cluster) -> None:
    folder = submitted(root, 7)
    cluster.says(row(folder, 7, "PENDING", "Dependency"))
    home = Path(os.environ["XDG_STATE_HOME"])
    done = run_folders.launcher("cancel", folder.name, f"run_root={root}", state_home=home)
    assert cluster.calls("scancel") == 1
    assert "asked" not in done.stderr, "which would be waited for"
    assert state(folder)[:2] == ("cancelled", "before it started")


def test_a_run_that_waits_for_another_names_it_and_how_that_ended(root: Path, cluster: Cluster) -> None:
    first = submitted(root, 7, status={"state": "running"})
    second = submitted(root, 8, "20260102-030406-calm-fox")
    store.write_json(second / "plan.json", {"schema": 1, "after": first.name})
    cluster.says(row(first, 7, "RUNNING") + row(second, 8, "PENDING", "Dependency"))
    assert state(second)[:2] == ("queued", f"waiting for {first.name}, which it comes after")
    for word, said in (("failed", "which failed"), ("cancelled", "which is cancelled")):
        store.write_json(first / "status.json", {"schema": 1, "attempt": 1, "state": word})
        cluster.says(row(second, 8, "CANCELLED", "Dependency"))
        (second / "verdict.json").unlink(missing_ok=True)
        age(40)
        assert state(second)[:2] == ("cancelled", f"it never started: it was to come after {first.name}, {said}")


def test_an_id_that_a_crashed_controller_gives_twice_has_nothing_of_the_job_before(
    root: Path, cluster: Cluster
) -> None:
    folder = submitted(root, 7)
    cluster.says("")
    os.utime(folder / "sbatch.1.out", (time.time() - 60,) * 2)
    assert state(folder).name == "lost"
    answer = folder / "sbatch.2.out"  # resumed: the controller forgot the job, and gave its id again
    answer.write_text("7\n")
    start.record_submission(folder, queue="slurm", first_attempt=1, script=f"{folder}/run.sh", answer=str(answer))
    assert state(folder)[:2] == ("queued", "accepted this moment")


def test_what_was_kept_of_an_id_before_it_was_given_again_counts_for_nothing(root: Path, cluster: Cluster) -> None:
    folder, other = submitted(root, 7), submitted(root, 8, "20260102-030406-calm-fox")
    cluster.says(row(other, 8, "RUNNING"), "7|NODE_FAIL|\n")
    os.utime(folder / "sbatch.1.out", (time.time() - 60,) * 2)
    assert state(folder).reason == "its node failed (job 7)"
    stopping.clear(folder)  # it is resumed
    answer = folder / "sbatch.2.out"
    answer.write_text("7\n")
    start.record_submission(folder, queue="slurm", first_attempt=1, script=f"{folder}/run.sh", answer=str(answer))
    assert state(other).name == "queued"
    assert state(folder)[:2] == ("queued", "accepted this moment")
    shared.changed()
    cluster.says(row(folder, 7, "PENDING", "Priority") + row(other, 8, "RUNNING"))
    age(shared.SOON)
    assert state(folder).reason == "waiting: others go first"
