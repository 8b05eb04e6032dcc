import os

import pytest

from launcher.errors import UsageError
from launcher.runs import remote_record, run_roots, selection, store
from launcher.runs.address import Address
from launcher.runs.remote_record import Pointer
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


def one(root, run, *, is_exact=True):
    return Selection(None, (Run(str(root), run),), is_exact)


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
    assert selection.newest_own(roots) == Run(roots[0], ids[-1])
    assert selection.newest_own([str(tmp_path / "c")]) is None


def test_a_sweep_is_found_with_those_of_its_runs_that_are_left_by_its_id_or_by_the_name_of_its_cells(root):
    for cell in (CELLS[0], CELLS[2]):
        named(root, cell, "widths")
    sweep = Selection(SWEEP, (Run(str(root), CELLS[0]), Run(str(root), CELLS[2])))
    assert find(SWEEP, root) == find("calm-lake", root) == find("widths", root) == sweep
    assert find("calm", root) == sweep._replace(is_exact=False)


def test_a_sweep_is_its_cells_in_their_order(root):
    cells = (CELLS[0], CELLS[1], f"{SWEEP}-999", f"{SWEEP}-1000")
    for run in (*reversed(cells), NAME, "20260104-000000-even-bay-001"):
        finished(root, run)
    assert find(SWEEP, root).runs == tuple(Run(str(root), cell) for cell in cells)


@users.needs_root
def test_anothers_run_that_is_called_like_a_cell_is_none_of_ones_own_sweep(root):
    for cell in CELLS:
        finished(root, cell)
    os.chown(root / CELLS[2], 61001, -1)
    assert find(SWEEP, root).runs == (Run(str(root), CELLS[0]), Run(str(root), CELLS[1]))
    for cell in CELLS:
        os.chown(root / cell, 61001, -1)
    assert len(find(SWEEP, root).runs) == 3


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


def test_an_exact_name_goes_before_a_beginning_and_two_that_fit_alike_are_refused(root):
    runs = [f"2026010{day}-000000-calm-lake" for day in (1, 2, 3, 4, 5, 7)]
    for run, name in zip(runs, ("g", "wide", "wide", "2026", "good-owl", "größe"), strict=True):
        named(root, run, name)
    owl = finished(root, "20260106-000000-good-owl").name
    for text, meant in (
        ("g", one(root, runs[0])),
        ("2026", one(root, runs[3])),
        ("größe", one(root, runs[5])),
        ("go", one(root, owl, is_exact=False)),
        (owl, one(root, owl)),
        ("wide", f"wide fits 2 runs, be more specific: {runs[1]} \\(named wide\\), {runs[2]} \\(named wide\\)"),
        ("good-owl", f"good-owl fits 2 runs, be more specific: {runs[4]} \\(named good-owl\\), {owl}"),
        ("narrow", "no run 'narrow'"),
    ):
        if isinstance(meant, Selection):
            assert find(text, root) == meant
        else:
            with pytest.raises(UsageError, match=meant):
                find(text, root)


@users.needs_root
def test_anothers_given_name_takes_neither_words_nor_a_beginning_from_ones_own_run(root):
    mine = finished(root, "20260101-000000-wise-owl")
    theirs = finished(root, "20260102-000000-calm-lake")
    root.chmod(0o755)
    for name, meant in (("wise-owl", one(root, mine.name)), ("wide", one(root, theirs.name, is_exact=False))):
        store.write_json(theirs / "plan.json", {"name": name})
        for path in (theirs, theirs / "plan.json"):
            os.chown(path, 61001, -1)
        assert find(name, root) == meant
    store.write_json(theirs / "plan.json", {"name": "wise"})
    with pytest.raises(UsageError, match="wise fits 2 runs"):
        find("wise", root)


def test_a_run_on_a_host_has_the_name_that_was_typed_here_whatever_its_host_says(root, tmp_path, monkeypatch):
    """The plan of a run on another host is a copy, which that host may change."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    finished(root, "20260101-000000-tall-lotus")
    far = finished(tmp_path / "state/launcher/elsewhere", "20260102-000000-calm-lake")
    roots = [root, run_roots.remote()]
    remote_record.write(far, Pointer(address=Address("box"), root="/runs", token="t", name="tall-l"))
    for said in ({}, {"name": "tall-lotus"}):
        store.write_json(far / "plan.json", said)
        assert find("tall-l", *roots) == one(run_roots.remote(), far.name)
    assert find("tall-lotus", *roots) == one(root, "20260101-000000-tall-lotus")


def test_numbers_after_a_sweep_are_its_cells(root):
    for cell in (*CELLS, "20260104-000000-even-bay-001"):
        finished(root, cell)
    first, second, third = (one(root, cell) for cell in CELLS)
    owl = finished(root, "20260101-000000-wise-owl").name

    def all_of(*texts):
        return selection.find_all(texts, [str(root)])

    assert all_of(SWEEP, "001") == all_of(SWEEP, "1") == [second]
    assert all_of("calm-lake", "000", "2", owl) == [first, third, one(root, owl)]
    assert all_of("calm", "001") == [second._replace(is_exact=False)]
    for number in ("003", "9" * 5000):
        with pytest.raises(UsageError, match=f"{SWEEP} has no cell {number[:20]}: the first is 000, the last 002"):
            all_of(SWEEP, number)
    with pytest.raises(UsageError, match="no run '001'"):
        all_of(owl, "001")


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


def test_however_many_runs_are_named_the_root_is_read_once(root, monkeypatch):
    for run, name in zip(CELLS, ("one", "two", "three"), strict=True):
        named(root, run, name)
    reads, run_names = [], selection.run_names
    monkeypatch.setattr(selection, "run_names", lambda root: reads.append(root) or run_names(root))
    assert len(selection.find_all([*CELLS, "one", "two", "one"], [str(root)])) == 6
    assert reads == [str(root)]
