import json
import os
import stat
import threading

import pytest

from launcher.errors import UsageError
from launcher.executors.slurm import shared
from launcher.runs import run_roots, selection, store
from launcher.runs.schema import Stopped
from launcher.runs.store import Run
from tests.launcher import users
from tests.launcher.run_folders import NAME, finished, make

SWEEP = "20260103-000000-calm-lake"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def test_a_new_folder_is_its_users_alone_and_marked_unfinished(root):
    folder = store.create(root, NAME)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
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
    found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")}
    assert {"state", "state/launcher", "state/launcher/roots", "state/launcher/slurm"} <= found.keys()
    assert not any(found.values())


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


@pytest.mark.parametrize("content", [b"", b"{", b'{"state": "runn', b"[]", b"null", b"\xff\xfe"])
def test_a_damaged_file_and_a_missing_one_are_distinguished(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(store.Damaged):
        store.read_json(tmp_path / "status.json")
    assert store.read_or_empty(tmp_path / "status.json") == {}
    assert store.load(str(tmp_path)).damaged == ("status.json",)
    assert store.read_json(tmp_path / "submission.json") is None


def test_loading_a_folder_gives_what_its_files_say(root):
    assert not store.load(str(root / NAME)).exists
    folder = finished(root, state="stopped")
    (folder / "STOP").touch()
    (folder / "attempts/1/stopped.json").write_text('{"step": 7}')
    files = store.load(str(folder))
    assert files.status.state == "stopped" and files.submission.queue == "direct"
    assert files[2:5] == (True, False, Stopped(step=7))
    assert (files.damaged, files.exists) == ((), True)


def test_the_marker_of_another_attempt_does_not_count(root):
    folder = finished(root, attempt=2)
    (folder / "attempts/1/stopped.json").write_text('{"step": 7}')
    assert store.load(str(folder)).saved is None


def test_the_reason_of_a_failure_is_the_trainers_unless_that_is_of_another_attempt(root):
    folder = finished(root, state="failed", attempt=2)
    for attempts, told in ((1, ""), (2, "OSError: No space left on device")):
        result = {"status": "failed", "reason": "OSError: No space left on device", "attempts": attempts}
        (folder / "result.json").write_text(json.dumps(result))
        assert store.load(str(folder)).failure == told


def test_the_reason_of_a_failure_is_that_of_the_rank_that_failed_first_where_rank_0_was_killed(root):
    folder = finished(root, state="failed", attempt=2)
    for attempt in ("1", "2"):
        (folder / "attempts" / attempt).mkdir(parents=True, exist_ok=True)
    (folder / "attempts/1/failed.json").write_text('{"rank": 3, "reason": "on rank 3, ValueError: before"}')
    assert store.load(str(folder)).failure == ""
    (folder / "attempts/2/failed.json").write_text('{"rank": 1, "reason": "on rank 1, ValueError: now"}')
    assert store.load(str(folder)).failure == "on rank 1, ValueError: now"
    (folder / "result.json").write_text('{"status": "failed", "reason": "on rank 0", "attempts": 2}')
    assert store.load(str(folder)).failure == "on rank 0"


def test_attempts_are_in_the_order_of_their_numbers(root):
    folder = make(root)
    for name in ("10", "2", "1", "notes"):
        (folder / "attempts" / name).mkdir(parents=True)
    assert store.attempts(folder) == [1, 2, 10]
    assert store.attempts(root / "nothing") == []


def test_only_runs_are_listed(root):
    make(root)
    for name in (".code", "notes", "2026"):
        (root / name).mkdir()
    assert selection.run_names(str(root)) == [NAME]
    assert selection.run_names(str(root / "nothing")) == []


def test_the_newest_runs_of_several_roots_come_newest_first(tmp_path):
    ids = [f"2026010{day}-000000-calm-lake" for day in range(1, 8)]
    for number, name in enumerate(ids):
        make(tmp_path / "ab"[number % 2], name)
    roots = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [run.id for run in selection.newest(roots, 3)] == ids[:3:-1]
    assert [run.id for run in selection.unfinished(roots)] == ids


def test_known_roots_are_remembered_once_in_the_order_of_their_first_use(tmp_path):
    for name in ("b", "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        run_roots.remember(tmp_path / name)
    assert run_roots.known() == [str(tmp_path / "b"), str(tmp_path / "a")]
    (tmp_path / "b").rmdir()
    assert run_roots.known() == [str(tmp_path / "a")]


def test_a_root_whose_name_is_no_text_is_remembered_among_others(tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff\xe9")
    odd.mkdir()
    for each in (odd, tmp_path):
        run_roots.remember(each)
    assert run_roots.known() == [str(odd), str(tmp_path)]


def test_a_named_root_is_taken_as_typed_with_the_home_folder_spelled_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my runs").mkdir()
    assert run_roots.named("~/my runs") == [str(tmp_path / "my runs")]
    with pytest.raises(UsageError, match="run_root=~/nowhere is no folder"):
        run_roots.named("~/nowhere")


def test_a_sweep_is_found_with_those_of_its_runs_that_are_left(root):
    cells = [f"{SWEEP}-00{index}" for index in range(3)]
    for cell in (cells[0], cells[2]):
        make(root, cell)
    store.write_sweep(root, SWEEP, cells, {"command": ["amp=o0,o1"]})
    found = selection.find("calm", [str(root)])
    assert found == selection.Selection(SWEEP, (Run(str(root), cells[0]), Run(str(root), cells[2])))
    assert json.loads((root / ".sweeps" / f"{SWEEP}.json").read_text())["command"] == ["amp=o0,o1"]


def test_a_name_of_runs_in_two_roots_is_ambiguous(tmp_path):
    for name in "ab":
        make(tmp_path / name)
    with pytest.raises(UsageError, match=f"run_root={tmp_path}/a or run_root={tmp_path}/b"):
        selection.find("brave", [str(tmp_path / "a"), str(tmp_path / "b")])


def test_the_name_that_a_run_was_given_means_it(root):
    for day, name in ((1, "baseline"), (2, "wide"), (3, "wide")):
        store.write_json(finished(root, f"2026010{day}-000000-calm-lake") / "plan.json", {"name": name})
    assert selection.find("baseline", [str(root)]).runs == (Run(str(root), "20260101-000000-calm-lake"),)
    with pytest.raises(UsageError, match="wide fits 2 runs, be more specific: 20260102-000000-calm-lake, 20260103"):
        selection.find("wide", [str(root)])
    with pytest.raises(UsageError, match="no run 'narrow'"):
        selection.find("narrow", [str(root)])


def test_a_given_name_takes_precedence_over_longer_ids_that_begin_with_it(root):
    for name, given in (("20260101-000000-calm-lake", "g"), ("20260102-000000-good-owl", "other")):
        store.write_json(finished(root, name) / "plan.json", {"name": given})
    assert selection.find("g", [str(root)]).runs == (Run(str(root), "20260101-000000-calm-lake"),)
    assert selection.find("go", [str(root)]).runs == (Run(str(root), "20260102-000000-good-owl"),)


@users.needs_root
def test_anothers_given_name_takes_no_beginning_of_ones_own_id(root):
    mine = finished(root, "20260101-000000-wise-owl")
    root.chmod(0o755)
    theirs = finished(root, "20260102-000000-calm-lake")
    store.write_json(theirs / "plan.json", {"name": "wise"})
    for path in (theirs, theirs / "plan.json"):
        os.chown(path, 61001, -1)
    assert selection.find("wise", [str(root)]).runs == (Run(str(root), mine.name),)
    store.write_json(theirs / "plan.json", {"name": "wide"})
    os.chown(theirs / "plan.json", 61001, -1)
    assert selection.find("wide", [str(root)]).runs == (Run(str(root), theirs.name),)


def test_a_name_that_a_host_gave_takes_no_beginning_of_an_id(root, tmp_path, monkeypatch):
    """The plan of a run on another host is a copy, which that host may change."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mine = finished(root, "20260101-000000-wise-owl")
    copy = finished(tmp_path / "state/launcher/elsewhere", "20260102-000000-calm-lake")
    store.write_json(copy / "plan.json", {"name": "wise"})
    roots = [str(root), run_roots.remote()]
    assert selection.find("wise", roots).runs == (Run(str(root), mine.name),)
    store.write_json(copy / "plan.json", {"name": "wide"})
    assert selection.find("wide", roots).runs == (Run(run_roots.remote(), copy.name),)


def test_however_many_texts_there_are_the_given_names_are_read_once(root, monkeypatch):
    for day, name in ((1, "one"), (2, "two")):
        store.write_json(finished(root, f"2026010{day}-000000-calm-lake") / "plan.json", {"name": name})
    reads = []
    monkeypatch.setattr(selection, "read", lambda cls, path, *more, **how: reads.append(path) or store.read(cls, path))
    selection.find_all(["one", "two", "one"], [str(root)])
    assert len(reads) == 2


def test_the_name_of_a_sweep_means_all_its_cells(root):
    cells = [f"{SWEEP}-00{index}" for index in range(3)]
    for cell in cells:
        store.write_json(finished(root, cell) / "plan.json", {"name": "widths"})
    store.write_sweep(root, SWEEP, cells, {})
    found = selection.find("widths", [str(root)])
    assert (found.sweep, [run.id for run in found.runs]) == (SWEEP, cells)


def test_a_number_means_the_cell_that_has_not_ended(root):
    other = "20260102-000000-even-bay"
    for cell in (f"{SWEEP}-000", f"{SWEEP}-001", f"{other}-001"):
        finished(root, cell)
    store.mark_unfinished(root, f"{SWEEP}-001")
    assert selection.find("001", [str(root)]).runs == (Run(str(root), f"{SWEEP}-001"),)
    with pytest.raises(UsageError, match=f"no run '000'; did you mean {SWEEP}-000[?]"):
        selection.find("000", [str(root)])
    store.mark_unfinished(root, f"{other}-001")
    with pytest.raises(UsageError, match="001 fits 2 runs"):
        selection.find("001", [str(root)])


def test_however_many_runs_are_named_the_root_is_read_once(root, monkeypatch):
    names = [f"20260102-0304{number:02}-brave-otter" for number in range(30)]
    read = []
    monkeypatch.setattr(selection, "run_names", lambda root: read.append(root) or names)
    assert [each.runs[0].id for each in selection.find_all([*names, names[3][:15]], [str(root)])] == [*names, names[3]]
    assert read == [str(root)]
