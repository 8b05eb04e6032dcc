import os

import pytest

from launcher.code import code_store
from launcher.commands import rm
from launcher.errors import LauncherError, UsageError
from launcher.executors import remove
from launcher.runs import processes, selection, store
from launcher.runs.store import Run

from ..run_folders import DEAF, NAME, SWEEP, WITHOUT_STOP, finished, make, running, start, state, submit, sweep, until

OTHER = "20260102-030406-calm-owl"


def test_a_finished_run_is_deleted_with_its_marker_and_nothing_else(root):
    finished(root)
    store.mark_unfinished(root, NAME)
    finished(root, OTHER)
    assert rm.main(["brave"]) == 0
    assert selection.run_names(str(root)) == [OTHER]
    assert selection.unfinished([str(root)]) == []


def test_the_target_of_a_link_stays(root, tmp_path):
    outside = finished(tmp_path / "elsewhere")
    (finished(root) / "data").symlink_to(outside)
    rm.main([NAME])
    (root / NAME).symlink_to(outside)
    with pytest.raises(LauncherError, match="is no run folder"):
        rm.main([NAME])
    assert (outside / "status.json").exists()


@pytest.mark.parametrize("name", ["..", ".", "", "../elsewhere/" + NAME, ".unfinished", NAME + "/attempts"])
def test_nothing_outside_a_run_root_can_be_deleted(root, tmp_path, name):
    finished(tmp_path / "elsewhere")
    finished(root)
    with pytest.raises(LauncherError, match="is no run folder"):
        remove.delete(Run(str(root), name))
    assert (tmp_path / "elsewhere" / NAME / "status.json").exists() and (root / NAME / "attempts").exists()


@pytest.mark.parametrize("words", [[], ["../elsewhere"], ["*"], ["."], ["/"], [""]])
def test_only_named_runs_are_deleted(root, words):
    finished(root)
    with pytest.raises(UsageError, match="no run" if words else "name the runs"):
        rm.main(words)
    assert (root / NAME).exists()


def test_a_run_that_has_not_ended_is_kept_and_so_are_the_others(root):
    folder = running(root, WITHOUT_STOP)
    finished(root, OTHER)
    with pytest.raises(UsageError, match=rf"not ended yet: {NAME} \(running\)"):
        rm.main([OTHER, NAME])
    assert sorted(selection.run_names(str(root))) == [NAME, OTHER]
    assert state(folder).name == "running"


def test_force_ends_it_first(root):
    folder = make(root, trainer=DEAF)
    child = start(folder)
    until(lambda: state(folder).name == "running")
    assert rm.main(["--force", NAME]) == 0
    assert not folder.exists()
    assert processes.processes_of([processes.Target(None, NAME)]) == [[]]
    child.wait(60)


def test_a_run_elsewhere_is_kept_even_with_force(root):
    folder = make(root)
    submit(folder, processes.Identity("n7", "another", 1, 1))
    with pytest.raises(LauncherError, match="is kept: it runs on n7"):
        rm.main(["--force", NAME])
    assert folder.exists()


def test_a_sweep_goes_with_its_record(root):
    rm.main([sweep(root, 3)[0].name])
    assert selection.sweep_names(str(root)) == [SWEEP]
    rm.main(["calm"])
    assert selection.run_names(str(root)) == [] and selection.sweep_names(str(root)) == []


def test_a_folder_that_was_never_submitted_can_be_deleted(root):
    make(root)
    assert rm.main([NAME]) == 0
    assert os.listdir(root / ".unfinished") == []


def code_of(root, folder, letter):
    """A snapshot, named by the plan in that folder."""
    digest = letter * 64
    store.write_json(folder / "plan.json", {**store.read_or_empty(folder / "plan.json"), "code": digest})
    (root / ".code" / digest).mkdir(parents=True, exist_ok=True)
    (root / ".code" / digest / "recipe.py").touch(mode=0o400)
    return root / ".code" / digest


def test_a_snapshot_goes_with_the_last_run_that_names_it(root):
    shared = code_of(root, finished(root), "a")
    code_of(root, finished(root, OTHER), "a")
    unknown = root / ".code" / ("b" * 64)  # of a run that is being made this moment
    unknown.mkdir()
    assert rm.main([NAME]) == 0
    assert (shared / "recipe.py").exists()
    assert rm.main([OTHER]) == 0
    assert os.listdir(root / ".code") == [unknown.name]


def test_a_snapshot_that_is_named_while_it_goes_is_there_afterwards(root):
    kept = code_of(root, finished(root), "a")
    answers = iter((False, True))
    code_store.prune(root / ".code", [kept.name], lambda digest: next(answers))
    assert (kept / "recipe.py").exists()
    assert os.listdir(root / ".code") == [kept.name]


def test_a_plan_that_names_no_snapshot_takes_none_away(root):
    folder = finished(root)
    kept = code_of(root, folder, "a")
    store.write_json(folder / "plan.json", {"code": "../../elsewhere"})
    assert rm.main([NAME]) == 0
    assert kept.exists()
