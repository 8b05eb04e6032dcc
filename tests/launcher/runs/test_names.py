import ast
import os
import shutil
import subprocess
import sys

import pytest

from launcher.runs import names, run_roots, selection, store
from tests.launcher import opened, users

RUNS = {f"2026010{day}-000000-calm-lake": f"job{day}" for day in range(1, 7)}
BY_NAME = {name: run for run, name in RUNS.items()}
FIRST, SECOND, *_ = RUNS
TEXTS = (*BY_NAME, "job7", "new")


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(names, "MANY", len(RUNS))
    for run, name in RUNS.items():
        make(tmp_path / "runs", run, name)
    return tmp_path / "runs"


def make(root, run, name):
    store.create(root, run)
    store.write_json(root / run / "plan.json", {"name": name})


def read(root):
    """The names in a root, and the runs whose records were opened for them."""
    with opened.noted() as runs:
        known = names.Names({str(root): selection.run_folders(str(root))})
    return {text: (known.own(text), known.given(text)) for text in TEXTS}, sorted(set(runs))


def owned(**runs):
    """What `read` finds where these runs have these names."""
    return {text: ([runs[text]] if runs.get(text) else [], []) for text in TEXTS}


def file_of(root):
    return names._path(str(root))


def test_the_plan_of_a_run_is_read_for_its_name_once(root):
    assert read(root) == (owned(**BY_NAME), sorted(RUNS))
    assert read(root) == (owned(**BY_NAME), [])
    make(root, "20260201-000000-wise-owl", "new")
    assert read(root) == (owned(**BY_NAME, new="20260201-000000-wise-owl"), ["20260201-000000-wise-owl"])


def test_few_runs_leave_no_file(root):
    shutil.rmtree(root / FIRST)
    read(root)
    assert not file_of(root).exists()


def _changed(path):
    path.write_bytes(path.read_bytes().replace(b"job1", b"job7"))


def _of_another_version(path):
    path.write_bytes(path.read_bytes().replace(b"1 ", b"2 ", 1))


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _link(path):
    path.rename(path.with_name("aside"))
    path.symlink_to("aside")


def _folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        *(_changed, _of_another_version, _cut, _link, _folder, os.unlink),
        *(lambda path, text=text: path.write_bytes(text) for text in (b"", b"\n", b"\xff" * 100, b"00000000\n")),
    ],
)
def test_a_damaged_file_says_nothing(root, damage):
    read(root)
    damage(file_of(root))
    assert read(root) == (owned(**BY_NAME), sorted(RUNS))


def test_an_old_file_says_nothing_of_runs_that_went_and_of_another_folder_in_the_place_of_one(root, tmp_path):
    read(root)
    make(tmp_path / "others", FIRST, "job7")
    (root / FIRST).rename(tmp_path / "aside")
    shutil.rmtree(root / SECOND)
    (tmp_path / "others" / FIRST).rename(root / FIRST)
    expected = {**BY_NAME, "job1": None, "job2": None, "job7": FIRST}
    assert read(root) == (owned(**expected), [FIRST])


def test_a_place_where_nothing_can_be_written_changes_no_answer(root, tmp_path):
    (tmp_path / "state").write_text("")
    for _ in range(2):
        assert read(root) == (owned(**BY_NAME), sorted(RUNS))


def test_processes_that_write_the_file_at_once_leave_it_whole(root):
    script = "import sys; from tests.launcher.runs import test_names as own; own.names.MANY = len(own.RUNS)\n"
    script += "for _ in range(20): own.file_of(sys.argv[1]).unlink(missing_ok=True); print(own.read(sys.argv[1])[0])"
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in started:
        answers = process.communicate()[0].splitlines()
        assert process.returncode == 0
        assert [ast.literal_eval(answer) for answer in answers] == [owned(**BY_NAME)] * 20
    assert read(root)[0] == owned(**BY_NAME)


@users.needs_root
def test_what_another_user_may_change_is_read_each_time(root, monkeypatch):
    monkeypatch.setattr(names, "MANY", len(RUNS) - 1)
    for path in (root / FIRST, root / FIRST / "plan.json"):
        os.chown(path, 61001, -1)
    read(root)
    for name in ("job1", "new"):
        (root / FIRST / "plan.json").write_text(f'{{"name": "{name}"}}')
        found, runs = read(root)
        assert found == {**owned(**BY_NAME), "job1": ([], []), name: ([], [FIRST])}
        assert runs == [FIRST]


def test_what_a_host_says_of_its_run_is_read_each_time_and_what_was_typed_here_once(root, tmp_path, monkeypatch):
    far = tmp_path / "state/launcher/elsewhere"
    for run, name in RUNS.items():
        make(far, run, name)
        if run != FIRST:
            store.write_json(far / run / "elsewhere.json", {"name": name})
    assert str(far) == run_roots.remote()
    monkeypatch.setattr(names, "MANY", len(RUNS) - 1)
    read(far)
    for name in ("job1", "new"):
        store.write_json(far / FIRST / "plan.json", {"name": name})
        found, runs = read(far)
        assert found == {**owned(**BY_NAME), "job1": ([], []), name: ([], [FIRST])}
        assert runs == [FIRST]
