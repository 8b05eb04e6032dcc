import json
import os
import stat
import threading

import pytest

from launcher import admit
from launcher.errors import UsageError
from launcher.executors.slurm import shared
from launcher.runs import run_files, run_roots, selection, store
from launcher.runs.schema import Stopped, Submission
from launcher.runs.store import Run
from tests.launcher.run_folders import NAME, finished, make


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def test_a_new_folder_is_its_users_alone_and_marked_unfinished(root):
    folder = store.create(root, NAME)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, root)] == [0o700, 0o700]
    assert selection.unfinished([str(root)]) == [Run(str(root), NAME)]
    with pytest.raises(FileExistsError):
        store.create(root, NAME)
    for _ in range(2):
        store.clear_unfinished(root, NAME)
        assert selection.unfinished([str(root)]) == []


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_a_private_file_is_its_users_alone_at_every_umask(tmp_path, monkeypatch, umask):
    """Whoever writes there puts pointers to hosts there, whose SSH configuration runs commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(umask)
    try:
        run_roots.remember(tmp_path)
        shared.changed()
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")}
    assert {"state", "state/launcher", "state/launcher/roots", "state/launcher/slurm"} <= modes.keys()
    assert not any(modes.values())


def test_a_record_that_would_fill_the_memory_of_who_looks_counts_as_damaged(tmp_path):
    """Another user can lay one into a root that they share."""
    (tmp_path / "plan.json").write_text('{"a": [' + "{}, " * 2**21 + "{}]}")
    with pytest.raises(store.Damaged, match="more than a record may"):
        store.read_json(tmp_path / "plan.json")


def test_a_file_is_private_and_a_value_that_is_no_json_leaves_it_and_nothing_aside(tmp_path):
    store.write_json(tmp_path / "plan.json", {"a": 1})
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o600
    with pytest.raises(TypeError):
        store.write_json(tmp_path / "plan.json", {"a": object()})
    assert os.listdir(tmp_path) == ["plan.json"]
    assert store.read_json(tmp_path / "plan.json") == {"a": 1}


def test_a_reader_never_sees_half_of_a_file_that_is_rewritten_all_the_time(tmp_path):
    path, done = tmp_path / "status.json", threading.Event()
    store.write_json(path, {"values": [0] * 2000})

    def rewrite():
        number = 0
        while not done.is_set():
            number += 1
            store.write_json(path, {"values": [number] * 2000})

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(300):
            values = store.read_json(path)["values"]
            assert len(values) == 2000 and len(set(values)) == 1
    finally:
        done.set()
        writer.join()


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"state": "runn', b"[]", b"null", b"\xff\xfe", b"\0\0", b"[" * 100_000, b"9" * 5000]
)
def test_a_damaged_file_and_a_missing_one_are_distinguished(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(store.Damaged):
        store.read_json(tmp_path / "status.json")
    assert store.read_or_empty(tmp_path / "status.json") == {}
    assert run_files.load(str(tmp_path)).damaged == ("status.json",)
    assert store.read_json(tmp_path / "submission.json") is None


def test_loading_a_folder_gives_what_its_files_say_of_the_attempt_in_status_json(root):
    assert not run_files.load(str(root / NAME)).exists
    folder = finished(root, state="stopped")
    (folder / "STOP").touch()
    (folder / "attempts/1/stopped.json").write_text('{"step": 7}')
    files = run_files.load(str(folder))
    assert files.status.state == "stopped" and files.submission.queue == "direct"
    assert files[2:5] == (True, False, Stopped(step=7))
    assert (files.damaged, files.exists) == ((), True)
    store.write_json(folder / "status.json", {"state": "stopped", "attempt": 2})
    assert run_files.load(str(folder)).saved is None


def test_a_failure_has_the_reason_of_the_trainer_or_of_the_rank_that_failed_first_in_the_same_attempt(root):
    folder = finished(root, state="failed", attempt=2)
    (folder / "attempts/2").mkdir()
    for file, values, reason in (
        ("attempts/1/failed.json", {"rank": 3, "reason": "on rank 3: before"}, ""),
        ("result.json", {"status": "failed", "reason": "before", "attempts": 1}, ""),
        # torchrun killed rank 0, which writes the result.
        ("attempts/2/failed.json", {"rank": 1, "reason": "on rank 1: now"}, "on rank 1: now"),
        ("result.json", {"status": "failed", "reason": "on rank 0", "attempts": 2}, "on rank 0"),
    ):
        (folder / file).write_text(json.dumps(values))
        assert run_files.load(str(folder)).failure == reason, file


def test_attempts_are_in_the_order_of_their_numbers(root):
    folder = make(root)
    for name in ("10", "2", "1", "notes", "123456", "1234567"):
        (folder / "attempts" / name).mkdir(parents=True)
    assert store.attempts(folder) == [1, 2, 10, 123456]
    assert store.attempts(root / "nothing") == []


def test_known_roots_are_remembered_once_in_the_order_of_their_first_use(tmp_path):
    odd = os.fsdecode(b"\xff\xe9")  # no text in any encoding
    for name in ("b", odd, "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        run_roots.remember(tmp_path / name)
    assert run_roots.known() == [str(tmp_path / name) for name in ("b", odd, "a")]
    (tmp_path / "b").rmdir()
    assert run_roots.known() == [str(tmp_path / name) for name in (odd, "a")]


def test_a_named_root_is_taken_as_typed_with_the_home_folder_spelled_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my runs").mkdir()
    assert run_roots.named("~/my runs") == [str(tmp_path / "my runs")]
    with pytest.raises(UsageError, match="run_root=~/nowhere is no folder"):
        run_roots.named("~/nowhere")


def test_a_record_may_be_as_large_as_that(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"a": 1}'.ljust(admit.LARGEST_RECORD))
    assert store.read_json(path) == {"a": 1}


def test_a_folder_that_cannot_be_looked_at_is_nobodys_and_damaged(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    files = run_files.load(str(tmp_path / "loop"))
    assert files.damaged == ("its folder",) and not files.owner.mine and "symbolic links" in files.owner.why


@pytest.mark.parametrize(
    ("text", "why"),
    [("attempt 1, preemption, 60 s", "preemption, 60 s"), ("attempt 1, signal TERM", "signal TERM"), ("please", "")],
)
def test_a_request_to_stop_says_why_where_slurm_made_it(root, text, why):
    folder = finished(root)
    assert run_files.load(str(folder)).stop_why == ""
    (folder / "STOP").write_text(text)
    files = run_files.load(str(folder))
    assert (files.stop, files.stop_why) == (True, why)


def test_a_folder_that_was_submitted_elsewhere_is_a_copy_while_its_own_submission_is_there(root, tmp_path):
    folder = finished(root)
    submission = Submission(id="a", folder=str(folder))
    (folder / "submission.json").write_text('{"id": "a"}')
    copy = tmp_path / "copy"
    copy.mkdir()
    assert run_files.original(str(copy), submission) == str(folder)
    assert run_files.original(str(folder), submission) == ""
    (tmp_path / "link").symlink_to(folder)
    assert run_files.original(str(tmp_path / "link"), submission) == ""
    for other in (submission._replace(id=None), submission._replace(id="b"), submission._replace(folder=None)):
        assert run_files.original(str(copy), other) == ""
    assert run_files.original(str(copy), submission._replace(folder=str(tmp_path / "gone"))) == ""


def test_what_lay_in_a_root_that_was_moved_is_where_that_is_now(root, tmp_path):
    folder = finished(root)
    before = {
        "folder": "/gone/runs/20260102-030405-brave-otter",
        "answer": "/gone/runs/a/sbatch.out",
        "log": "/gone/elsewhere.log",
    }
    (folder / "submission.json").write_text(json.dumps({"queue": "slurm", **before}))
    submission = run_files.load(str(folder)).submission
    assert (submission.answer, submission.log) == (f"{root}/a/sbatch.out", "/gone/elsewhere.log")


def test_a_cancelled_run_says_why_it_had_to_be_killed(root):
    folder = finished(root)
    assert not run_files.load(str(folder)).cancelled
    (folder / "cancelled").write_text('{"killed": "it did not end"}')
    files = run_files.load(str(folder))
    assert (files.cancelled, files.killed) == (True, "it did not end")


def test_the_plan_that_holds_is_the_next_attempts_until_that_has_begun(root):
    folder = finished(root)
    assert store.plan_path(folder) == f"{folder}/plan.json"
    (folder / "attempts/plan.json").write_text("{}")
    assert store.plan_path(folder) == f"{folder}/plan.json"  # of a launcher that never submitted it
    (folder / "submission.json").write_text('{"first_attempt": 2}')
    assert store.plan_path(folder) == f"{folder}/attempts/plan.json"
    (folder / "attempts/2").mkdir()
    (folder / "attempts/2/plan.json").write_text("{}")
    assert store.plan_path(folder) == f"{folder}/attempts/2/plan.json"


def test_sbatch_refused_a_run_where_its_answer_says_so(tmp_path):
    assert not run_files.is_refused(Submission())
    answer = tmp_path / "sbatch.1.out"
    assert not run_files.is_refused(Submission(answer=str(answer)))
    answer.with_suffix(".failed").touch()
    assert run_files.is_refused(Submission(answer=str(answer)))
    assert run_files.Files().submitted == Submission()
    assert run_files.Files(submission=Submission(id="a")).submitted.id == "a"
