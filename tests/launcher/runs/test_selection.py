import json
import os

import pytest

from launcher.errors import UsageError
from launcher.runs import run_roots, selection, store
from launcher.runs.selection import Selection
from launcher.runs.store import Run
from tests.launcher import users
from tests.launcher.run_folders import NAME, finished, make

SWEEP = "20260103-000000-calm-lake"
CELLS = [f"{SWEEP}-00{index}" for index in range(3)]


@pytest.fixture
def root(tmp_path):
    return tmp_path / "runs"


def named(root, run, name):
    folder = finished(root, run)
    store.write_json(folder / "plan.json", {"name": name})
    return folder


def find(text, *roots):
    return selection.find(text, [str(root) for root in roots])


def one(root, run):
    return Selection(None, (Run(str(root), run),))


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


def test_a_sweep_is_found_with_those_of_its_runs_that_are_left_by_its_id_or_by_the_name_of_its_cells(root):
    for cell in (CELLS[0], CELLS[2]):
        named(root, cell, "widths")
    store.write_sweep(root, SWEEP, CELLS, {"command": ["amp=o0,o1"]})
    sweep = Selection(SWEEP, (Run(str(root), CELLS[0]), Run(str(root), CELLS[2])))
    assert find("calm", root) == find("widths", root) == sweep
    assert json.loads((root / ".sweeps" / f"{SWEEP}.json").read_text())["command"] == ["amp=o0,o1"]


def test_the_path_of_a_runs_folder_names_it_in_any_root(root, tmp_path, monkeypatch):
    make(root)
    monkeypatch.chdir(root)
    for text in (f"{root}/{NAME}", f"./{NAME}/", f"../{root.name}/{NAME}"):
        assert find(text, tmp_path / "another") == one(root, NAME)
    for text in (f"{root}/20260101-000000-no-run", f"{root}/", "../"):
        with pytest.raises(UsageError, match="no run "):
            find(text, root)


def test_a_run_in_two_roots_is_ambiguous(tmp_path):
    for name in "ab":
        make(tmp_path / name)
    with pytest.raises(UsageError, match=f"run_root={tmp_path}/a or run_root={tmp_path}/b"):
        find("brave", tmp_path / "a", tmp_path / "b")


def test_the_name_that_a_run_was_given_means_it_before_longer_ids(root):
    runs = [f"2026010{day}-000000-calm-lake" for day in (1, 2, 3)]
    for run, name in zip(runs, ("g", "wide", "wide"), strict=True):
        named(root, run, name)
    owl = finished(root, "20260104-000000-good-owl").name
    assert (find("g", root), find("go", root)) == (one(root, runs[0]), one(root, owl))
    with pytest.raises(UsageError, match=f"wide fits 2 runs, be more specific: {runs[1]}, {runs[2]}"):
        find("wide", root)
    with pytest.raises(UsageError, match="no run 'narrow'"):
        find("narrow", root)


@users.needs_root
def test_anothers_given_name_takes_no_beginning_of_ones_own_id(root):
    mine = finished(root, "20260101-000000-wise-owl")
    theirs = finished(root, "20260102-000000-calm-lake")
    root.chmod(0o755)
    for name, run in (("wise", mine), ("wide", theirs)):
        store.write_json(theirs / "plan.json", {"name": name})
        for path in (theirs, theirs / "plan.json"):
            os.chown(path, 61001, -1)
        assert find(name, root) == one(root, run.name)


def test_a_name_that_a_host_gave_takes_no_beginning_of_an_id(root, tmp_path, monkeypatch):
    """The plan of a run on another host is a copy, which that host may change."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mine = finished(root, "20260101-000000-wise-owl")
    copy = named(tmp_path / "state/launcher/elsewhere", "20260102-000000-calm-lake", "wise")
    roots = [root, run_roots.remote()]
    assert find("wise", *roots) == one(root, mine.name)
    store.write_json(copy / "plan.json", {"name": "wide"})
    assert find("wide", *roots) == one(run_roots.remote(), copy.name)


def test_a_number_means_the_cell_that_has_not_ended(root):
    other = "20260102-000000-even-bay-001"
    for cell in (*CELLS[:2], other):
        finished(root, cell)
    store.mark_unfinished(root, CELLS[1])
    assert find("001", root) == one(root, CELLS[1])
    with pytest.raises(UsageError, match=f"no run '000'; did you mean {CELLS[0]}[?]"):
        find("000", root)
    store.mark_unfinished(root, other)
    with pytest.raises(UsageError, match="001 fits 2 runs"):
        find("001", root)


def test_however_many_runs_are_named_the_root_and_its_plans_are_read_once(root, monkeypatch):
    for run, name in zip(CELLS, ("one", "two", "three"), strict=True):
        named(root, run, name)
    reads = []
    monkeypatch.setattr(selection, "read", lambda cls, path, *more, **how: reads.append(path) or store.read(cls, path))
    monkeypatch.setattr(selection, "run_names", lambda root: reads.append(root) or CELLS)
    selection.find_all([*CELLS, "one", "two", "one"], [str(root)])
    assert len(reads) == 1 + len(CELLS)
