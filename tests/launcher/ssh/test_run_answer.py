"""A host's answer about one run, as it is made there and admitted here. No connection."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from launcher import units
from launcher.admit import Refused
from launcher.executors.backends import states_of
from launcher.runs import processes, remote_record, store, terminals
from launcher.runs.address import Address
from launcher.runs.log_pieces import LogOffset
from launcher.runs.remote_record import Known, Pointer
from launcher.runs.states import State
from launcher.runs.store import Run
from launcher.ssh import logs, methods, remote_status, run_answer, status_answer
from launcher.ssh.failures import BadAnswer, Retries, Unreachable
from launcher.ssh.methods import METRICS
from launcher.ssh.status_answer import Answer
from tests.launcher import run_folders

EMPTY = hashlib.sha256().hexdigest()


def question(stamps: dict[str, Any] | None = None, have: tuple[int, str] = (0, EMPTY)) -> dict[str, Any]:
    return {"stamps": stamps or {}, "arms": [], "metrics": {METRICS: list(have)}}


def answer(folder: Path, asked: dict[str, Any], follow: bool = True) -> dict[str, Any]:
    (seen,) = states_of([Run(str(folder.parent), folder.name)])
    return json.loads(json.dumps(run_answer.status(seen, asked, follow)))


def rows(folder: Path, *steps: int) -> None:
    run_folders.metrics(folder, [{"step": step, "time": time.time() - 90} for step in steps])


def test_files_come_once_and_again_when_they_change_unless_they_are_too_long(root, monkeypatch):
    folder = run_folders.finished(root)
    first = answer(folder, question())
    assert {"plan.json", "status.json", "submission.json"} == first["files"].keys() and not first["more"]
    stamps = {name: stamp for name, (stamp, _) in first["files"].items()}
    assert answer(folder, question(stamps))["files"] == {}
    status = store.read_json(folder / "status.json")
    store.write_json(folder / "status.json", {**status, "reason": "changed"})
    (changed,) = answer(folder, question(stamps))["files"].items()
    assert changed[0] == "status.json" and json.loads(changed[1][1])["reason"] == "changed"
    monkeypatch.setattr(run_answer, "LONGEST_SMALL", (folder / "status.json").stat().st_size)
    assert "status.json" in answer(folder, question(stamps))["files"], "as long as may be"
    monkeypatch.setattr(run_answer, "LONGEST_SMALL", (folder / "status.json").stat().st_size - 1)
    assert answer(folder, question(stamps))["files"] == {}


def test_what_has_no_room_in_an_answer_is_said_to_be_there(root, monkeypatch):
    folder = run_folders.finished(root)
    sizes = {name: (folder / name).stat().st_size for name in ("plan.json", "submission.json", "status.json")}
    monkeypatch.setattr(run_answer, "ROOM", sizes["plan.json"] + sizes["submission.json"])
    rows(folder, 1)
    first = answer(folder, question())
    assert (set(first["files"]), first["more"], first["metrics"]) == ({"plan.json", "submission.json"}, True, {})
    assert answer(folder, question(), follow=False)["more"]
    monkeypatch.setattr(run_answer, "ROOM", sum(sizes.values()))
    monkeypatch.setattr(run_answer, "PIECE", 0)
    assert not answer(folder, question(), follow=False)["more"]


def test_of_metrics_the_new_part_comes_in_whole_lines_and_all_after_they_were_cut_back(root, monkeypatch):
    folder = run_folders.finished(root)
    rows(folder, *range(1, 41))
    written = (folder / METRICS).read_bytes()

    def part(*have: Any) -> tuple[int, str, bool]:
        found = answer(folder, question(have=have))
        return (*found["metrics"][METRICS], found["more"])

    assert part(0, EMPTY) == (0, written.decode(), False)
    size, digest = remote_status.measured(folder, METRICS)
    assert (size, digest) == (len(written), hashlib.sha256(written[-256:]).hexdigest())
    assert part(size, digest) == (size, "", False)
    (folder / METRICS).unlink()
    rows(folder, *range(1, 39))
    assert part(size, digest)[0] == 0
    shorter = remote_status.measured(folder, METRICS)
    with open(folder / METRICS, "a") as stream:
        stream.write('{"step": 39}\n{"step"')
    assert part(*shorter) == (shorter[0], '{"step": 39}\n{"step"', False)
    monkeypatch.setattr(run_answer, "PIECE", 16)
    assert part(*shorter) == (shorter[0], '{"step": 39}\n', True)
    (folder / METRICS).unlink()
    assert part(0, EMPTY) == (0, "", False)


def test_a_live_run_has_its_step_and_age_and_one_that_failed_the_end_of_its_log(root):
    live = run_folders.running(root, "exec sleep 300")
    rows(live, 6, 7)
    told = answer(live, question(), follow=False)
    assert (told["step"], "log" in told, told["idle"], told["age"]) == (7, False, None, None)
    assert 90 <= told["step_age"] < 600 and "metrics" not in told
    failed = run_folders.finished(root, "20260102-030406-calm-fox", "failed")
    rows(failed, 7)
    (failed / "attempts/1/stderr.log").write_text("no such operation\n")
    told = answer(failed, question())
    assert (told["step"], told["log"]) == (None, [str(failed / "attempts/1/stderr.log"), ["no such operation"]])


def test_a_host_has_a_run_once_it_was_submitted_or_started(root):
    done = run_folders.finished(root)
    folder = run_folders.make(root, "20260102-030406-calm-fox")
    assert not answer(folder, question())["begun"]
    for name in ("submission.json", "status.json"):
        shutil.copy(done / name, folder)
        assert answer(folder, question())["begun"], name
        (folder / name).unlink()


def test_an_answer_says_how_long_ago_the_scheduler_was_asked(root):
    (seen,) = states_of([Run(str(root), run_folders.finished(root).name)])
    told = run_answer.status(seen._replace(asked=time.time() - 90), question(), False)
    assert 90 <= told["age"] < 600


def test_what_up_started_is_idle_since_its_last_terminal(root):
    folder = run_folders.running(root, "exec sleep 300")
    plan = store.read_json(folder / "plan.json")
    store.write_json(folder / "plan.json", {**plan, "up": True})
    started = units.seconds_of(store.read_json(folder / "status.json")["started"])
    assert abs(answer(folder, question())["idle"] - (time.time() - started)) < 60, "nobody was in it"
    with open(folder / terminals.MARK, "w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        assert answer(folder, question())["idle"] == 0


LIVE = {"state": list(State("running", started="2026-01-02T03:04:05Z")), "begun": True, "attempts": [1], "files": {}}


@pytest.mark.parametrize(
    ("state", "ahead", "started"),
    [
        ("running", 100, "2026-01-02T03:02:25Z"),
        ("running", -100, "2026-01-02T03:05:45Z"),
        ("running", 1, "2026-01-02T03:04:05Z"),
        ("done", 100, "2026-01-02T03:04:05Z"),
    ],
)
def test_the_start_of_a_live_run_is_told_by_the_clock_here(monkeypatch, state, ahead, started):
    monkeypatch.setattr(time, "time", lambda: 2**31)
    told = {**LIVE, "state": list(State(state, started="2026-01-02T03:04:05Z")), "time": 2**31 + ahead}
    seen = status_answer.admitted(told, question(), False)
    assert seen.state.started == started


def test_more_is_believed_of_an_answer_that_brings_something():
    told = {**LIVE, "time": 0, "more": True}
    files = {"files": {"plan.json": [[2, 1], "{}"]}}
    for more, metrics, is_more in (({}, "", False), (files, "", True), ({}, "{}\n", True)):
        seen = status_answer.admitted({**told, **more, "metrics": {METRICS: [0, metrics]}}, question(), True)
        assert seen.more is is_more
    for start, have in ((0, 5), (5, 5)):
        told["metrics"] = {METRICS: [start, ""]}
        assert status_answer.admitted(told, question(have=(have, EMPTY)), True).metrics[METRICS].start == start
    with pytest.raises(Refused, match="metrics begin at 3, and 5 bytes of them are here"):
        status_answer.admitted({**told, "metrics": {METRICS: [3, ""]}}, question(have=(5, EMPTY)), True)


@pytest.mark.parametrize(
    ("before", "head", "refused"),
    [
        (None, [[1, 9, 9], [4, 5], False, True], ""),
        (LogOffset(1, 5, 4), [[1, 9, 9], [4, 5], False, True], ""),
        (LogOffset(1, 5, 4), [[2, 4, 5], [4, 5], False, True], ""),  # the next attempt
        (LogOffset(1, 5, 4), [[1, 9, 8], [4, 5], False, True], "does not continue where the log was left"),
        (LogOffset(2, 5, 4), [[1, 9, 9], [4, 5], False, True], "does not continue where the log was left"),
        (LogOffset(1, 9, 9), [[1, 9, 9], [0, 0], True, False], "does not continue where the log was left"),
        (LogOffset(1, 9, 9), [[1, 9, 9], [0, 0], False, True], ""),
        (None, [[1, 9, 9], [4, 5], True, False], ""),
        (None, [[1, 9, 9], [4, 5], False, False], "its log neither ends nor continues"),
    ],
)
def test_a_piece_of_a_log_continues_where_the_one_before_ended(before, head, refused):
    place, *rest = head
    told = dict(zip(("place", "sizes", "more", "ended"), (LogOffset(*place)._asdict(), *rest), strict=True))
    if refused:
        with pytest.raises(Refused, match=refused):
            logs._head(told, before, following=False)
    else:
        piece, sizes = logs._head(told, before, following=False)
        assert [list(piece.place), list(sizes)] == head[:2]
    if not refused.startswith("does not"):
        logs._head(told, before, following=True)


@pytest.mark.parametrize("following", [False, True])
def test_a_log_is_asked_for_again_where_it_is_followed_from_a_known_place(monkeypatch, following):
    def ask(*_: Any, **__: Any) -> None:
        raise Unreachable("lost")

    def wait(*_: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr(logs, "_ask", ask)
    monkeypatch.setattr(Retries, "wait", wait)
    run, pointer = Run("/r", run_folders.NAME), Pointer(Address(destination="box"), "/r", "t")
    for place, error in ((LogOffset(1, 0, 0), InterruptedError if following else Unreachable), (None, Unreachable)):
        with pytest.raises(error):
            logs.from_host(run, pointer, place, attempt=None, lines=None, following=following)


def test_a_lost_connection_is_tried_again_with_growing_pauses_until_patience_ends(monkeypatch):
    now, slept, said = [1000.0], [], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(seconds))
    retries, lost = Retries(), Unreachable("lost")
    for _ in range(6):
        retries.wait(lost, said.append)
    assert (slept, len(said)) == ([1.0, 2.0, 5.0, 10.0, 10.0, 10.0], 1)
    now[0] += Retries.PATIENCE
    retries.wait(lost, said.append)
    now[0] += 1
    with pytest.raises(Unreachable, match=r"^lost$"):
        retries.wait(lost, said.append)
    retries.begin_anew()
    retries.wait(lost, said.append)
    assert (slept[-1], len(said)) == (1.0, 2)
    with pytest.raises(BadAnswer):
        Retries().wait(BadAnswer("nonsense"), said.append)
    assert len(said) == 2


def test_metrics_of_arms_are_copied_at_the_end_alone():
    assert "arms/00/metrics.jsonl" in methods.of_run([], ["00"], ended=True)
    assert "arms/00/metrics.jsonl" not in methods.of_run([1], ["00"], ended=False)
    told = {**LIVE, "time": 0, "files": {"arms/00/metrics.jsonl": [[2, 1], "{}"]}}
    assert status_answer.admitted(told, {**question(), "arms": ["00"]}, False).files


@pytest.mark.parametrize(
    ("submitter", "age", "told"),
    [
        (os.getpid(), 1e6, "queued it is being submitted to box"),
        (None, remote_status.DOUBT - 60, "unreachable the connection was cut while it was submitted to box; ask again"),
        (None, remote_status.DOUBT + 1, "lost it never reached box"),
    ],
)
def test_a_run_that_its_host_does_not_have_is_lost_once_no_submission_can_arrive(tmp_path, submitter, age, told):
    run = Run(str(tmp_path), run_folders.NAME)
    run.folder.mkdir()
    identity = processes.identity(os.getpid())
    by = identity if submitter else identity._replace(start=identity.start + 1)
    pointer = Pointer(Address(destination="box"), "/r", "t", submitter=by, created=time.time() - age)
    state = remote_status._kept(run, pointer, Answer(State("lost"), 0, False, (), {})).state
    assert f"{state.name} {state.reason}".startswith(told)
    assert remote_status.is_settled(run) is (state.name == "lost")
    assert remote_status.is_settled(run, follow=True) is (state.name == "lost"), "without an attempt it has no metrics"


def test_ages_in_an_answer_are_times_by_the_clock_here(tmp_path, monkeypatch):
    run, pointer = Run(str(tmp_path), run_folders.NAME), Pointer(Address(destination="box"), "/r", "t")
    run.folder.mkdir()
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    for ages, times in (({"step_age": 30, "age": 90}, (910.0, 970.0)), ({}, (None, None))):
        reply = remote_status._kept(run, pointer, Answer(State("running"), 0, True, (), {}, step=7, **ages))
        assert (reply.asked, remote_record.known(run.folder).stepped) == times


def test_of_a_host_that_does_not_answer_the_last_state_is_told_with_its_age(tmp_path):
    run = Run(str(tmp_path), run_folders.NAME)
    run.folder.mkdir()
    rows = (("running", "unreachable gone; running 1h00m ago"), ("done", "done "), ("", "unreachable gone"))
    for state, told in rows:
        if state:
            remote_record.remember(run.folder, Known(State(state, attempt=1), time.time() - 3600))
        else:
            (run.folder / remote_record.KNOWN).unlink()
        known = remote_status._unreachable(run, "gone\nand more" if state else "gone")
        assert f"{known.name} {known.reason}" == told
        settled = (remote_status.is_settled(run), remote_status.is_settled(run, follow=True))
        assert settled == (state == "done", False), "its metrics are not here"
        assert remote_status._remembered(run, False).name == (state if state == "done" else "unreachable")
