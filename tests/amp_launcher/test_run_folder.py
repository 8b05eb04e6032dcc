"""The trainer's part of a run folder."""

from __future__ import annotations

import json
import math
import stat

import pytest

from amp_launcher.run_folder import RunFolder, Superseded, first_failure, next_attempt, write_json


def test_a_folder_of_our_making_is_its_owners_alone(tmp_path):
    folder = RunFolder(path=tmp_path / "run", attempt=1)
    folder.create()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_the_marker_names_the_checkpoint_and_takes_the_request_back(tmp_path):
    folder = RunFolder(path=tmp_path, attempt=3)
    folder.stop.touch()
    folder.mark_stopped(tmp_path / "checkpoints" / "step-000000007", 7)
    marker = json.loads((tmp_path / "attempts" / "3" / "stopped.json").read_text())
    assert (marker["schema"], marker["checkpoint"], marker["step"]) == (1, "checkpoints/step-000000007", 7)
    assert not folder.stop.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "request"),
        ("attempt 3\n", "time limit"),
        ("attempt 3, preemption, 55 s\n", "preemption"),
        ("attempt 3, signal TERM\n", "signal TERM"),
        (None, "request"),
    ],
    ids=["a person's", "an older run script's", "for a preemption", "a signal's", "none"],
)
def test_the_marker_distinguishes_a_time_limit_from_a_request(tmp_path, content, why):
    folder = RunFolder(path=tmp_path, attempt=3)
    if content is not None:
        folder.stop.write_text(content)
    folder.mark_stopped(tmp_path / "checkpoints" / "step-000000007", 7)
    assert json.loads(folder.stopped.read_text())["why"] == why


def test_nothing_is_written_after_a_later_attempt_has_begun(tmp_path):
    folder = RunFolder(path=tmp_path, attempt=1)
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    folder.check_ours()
    (tmp_path / "attempts" / "2").mkdir()
    with pytest.raises(Superseded, match=r"attempt 1 ends without another word: .*attempts/2 has taken over"):
        folder.mark_stopped(tmp_path / "checkpoints" / "step-000000007", 7)
    assert not folder.stopped.exists()
    RunFolder(path=tmp_path, attempt=2).check_ours()


def test_a_run_folder_that_was_deleted_is_not_made_again(tmp_path):
    folder = RunFolder(path=tmp_path / "run", attempt=1)
    with pytest.raises(Superseded, match="is gone"):
        folder.mark_stopped(folder.checkpoints / "step-000000007", 7)
    assert not folder.path.exists()


def test_without_a_launcher_attempts_are_counted_after_all_that_left_anything(tmp_path):
    assert next_attempt(None, 0) == next_attempt(tmp_path, 0) == 1
    assert next_attempt(tmp_path, 2) == 3
    (tmp_path / "attempts" / "4").mkdir(parents=True)
    assert next_attempt(tmp_path, 2) == 5


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"value": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"value": math.nan})
    assert json.loads(path.read_text()) == {"value": 1}


def test_the_first_failure_of_an_attempt_is_kept_and_is_the_reason_of_later_ones(tmp_path):
    folder, environ = tmp_path / "attempts" / "2", {"LAUNCHER_ATTEMPT": "2"}
    folder.mkdir(parents=True)
    assert first_failure(tmp_path, 1, "ValueError: no", environ) == "on rank 1, ValueError: no"
    assert first_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", environ) == "on rank 1, ValueError: no"
    assert [path.name for path in folder.iterdir()] == ["failed.json"]
    assert json.loads((folder / "failed.json").read_text())["rank"] == 1


def test_without_a_launcher_each_process_reports_its_own_failure(tmp_path):
    assert first_failure(tmp_path, 0, "ValueError: no", {}) == "ValueError: no"
    assert first_failure(None, 2, "ValueError: no", {"LAUNCHER_ATTEMPT": "1"}) == "on rank 2, ValueError: no"
    assert list(tmp_path.iterdir()) == []
