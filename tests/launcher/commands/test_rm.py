import fcntl
import os
import pty
import re
import shutil
import subprocess
import time

import pytest

from launcher.code import code_store, uv_environment
from launcher.commands import rm
from launcher.errors import LauncherError, UsageError
from launcher.executors import remove, trash
from launcher.runs import processes, selection, store
from launcher.runs.store import Run

from .. import users
from ..run_folders import DEAF, NAME, SWEEP, WITHOUT_STOP, finished, make, running, start, state, submit, sweep, until

OTHER = "20260102-030406-calm-owl"


def test_a_finished_run_is_deleted_with_its_marker_and_nothing_else(root):
    finished(root)
    store.mark_unfinished(root, NAME)
    finished(root, OTHER)
    assert rm.main(["brave-otter"]) == 0
    assert selection.run_names(str(root)) == [OTHER]
    assert selection.unfinished([str(root)]) == []


def test_the_target_of_a_link_stays(root, tmp_path):
    outside = finished(tmp_path / "elsewhere")
    (outside / "large").write_bytes(bytes(1_000_000))
    (finished(root) / "data").symlink_to(outside)
    (root / NAME / "file").symlink_to(outside / "large")
    assert trash.size(Run(str(root), NAME)) < 1_000_000
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
    child.wait()


def test_a_run_elsewhere_is_kept_even_with_force(root):
    folder = make(root)
    submit(folder, processes.Identity("n7", "another", 1, 1))
    with pytest.raises(LauncherError, match="is kept: it runs on n7"):
        rm.main(["--force", NAME])
    assert folder.exists()


def test_a_sweep_goes_with_what_its_arrays_left(root):
    cells = sweep(root, 3)
    of_arrays = root / store.SWEEPS / SWEEP
    of_arrays.mkdir(parents=True)
    (of_arrays / "1-0.sh").touch()
    rm.main([cells[0].name])
    assert (of_arrays / "1-0.sh").exists()
    rm.main(["calm-lake"])
    assert selection.run_names(str(root)) == [] and not of_arrays.exists()


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
    # What an earlier attempt ran keeps nothing.
    store.write_json(finished(root, "20260104-030406-wise-owl") / "attempts/1/plan.json", {"code": "a" * 64})
    unknown = root / ".code" / ("b" * 64)  # of a run that is being made this moment
    unknown.mkdir()
    assert rm.main(["--now", NAME]) == 0
    assert (shared / "recipe.py").exists()
    assert rm.main(["--now", OTHER]) == 0
    assert os.listdir(root / ".code") == [unknown.name]


def test_a_snapshot_that_is_named_while_it_goes_is_there_afterwards(root):
    kept = code_of(root, finished(root), "a")
    answers = iter(([], [kept.name]))
    code_store.prune(root / ".code", [kept.name], lambda digests: next(answers))
    assert (kept / "recipe.py").exists()
    assert os.listdir(root / ".code") == [kept.name]


def test_a_plan_that_names_no_snapshot_takes_none_away(root):
    folder = finished(root)
    kept = code_of(root, folder, "a")
    store.write_json(folder / "plan.json", {"code": "../../elsewhere"})
    assert rm.main(["--now", NAME]) == 0
    assert kept.exists()


def trashed(root):
    return sorted(path.name for path in root.glob(".trash/*/*"))


def test_a_removed_run_stays_in_the_trash_without_its_secrets_and_is_brought_back_by_mv(root, capsys):
    folder, cells = finished(root), sweep(root, 2)
    code = code_of(root, folder, "a")
    for secrets in (folder / ".secrets", folder / "arms/00/.secrets"):
        secrets.mkdir(parents=True)
        (secrets / "TOKEN").touch()
    assert rm.main([NAME, SWEEP]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0] == f"{NAME}  moved to the trash"
    assert re.search(rf"in the trash {root}/\.trash: 3 runs, \d+[.\d]* KiB", printed.err)
    assert code.exists() and selection.run_names(str(root)) == []
    for removed in root.glob(".trash/*/*"):
        removed.rename(root / removed.name)
    assert state(folder).name == "done" and not list(folder.rglob(".secrets"))
    assert [run.folder for run in selection.find("calm-lake", [str(root)]).runs] == cells


def test_what_one_rm_took_is_in_one_folder(root, monkeypatch):
    seconds = iter(range(100))
    monkeypatch.setattr(time, "strftime", lambda *_: f"20260101-0000{next(seconds):02}")
    cells = sweep(root, 3)
    rm.main([SWEEP])
    (taken,) = (root / ".trash").iterdir()
    assert sorted(os.listdir(taken)) == [cell.name for cell in cells]


def test_what_is_in_the_trash_for_a_week_goes_with_its_code_at_the_next_rm(root):
    code, third = code_of(root, finished(root), "a"), "20260104-030406-wise-owl"
    for name in (OTHER, third):
        finished(root, name)
    rm.main([NAME])
    (taken,) = (root / ".trash").iterdir()
    taken = taken.rename(taken.with_name(trash.moment(7 * 86400 - 600)))
    assert rm.main([OTHER]) == 0 and NAME in trashed(root) and code.exists()
    taken.rename(taken.with_name(trash.moment(7 * 86400 + 600)))
    assert rm.main([third]) == 0 and NAME not in trashed(root) and not code.exists()


@pytest.mark.parametrize(("answer", "left"), [("n", [NAME]), ("", [NAME]), ("y", [])])
def test_a_beginning_is_asked_about_with_the_size_of_what_would_go(root, monkeypatch, capsys, answer, left):
    monkeypatch.setattr(rm, "MOST", 1)
    finished(root)
    with pytest.raises(UsageError, match=r"^rm: brave is a beginning .* in full, or say --yes"):
        rm.main(["brave"])
    assert re.fullmatch(rf"{NAME}  \d+[.\d]* KiB\n", capsys.readouterr().err) and trashed(root) == []
    finished(root, OTHER)
    with pytest.raises(UsageError, match=r"^rm: among brave calm is a beginning"):
        rm.main(["brave", "calm"])
    assert capsys.readouterr().err.endswith("\nand 1 more\n")
    shutil.rmtree(root / OTHER)
    typed, terminal = pty.openpty()
    os.write(typed, f"{answer}\n".encode())
    with open(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert rm.main(["brave"]) == 0
    os.close(typed)
    assert selection.run_names(str(root)) == left and trashed(root) == [NAME] * (not left)


def test_now_frees_the_space_at_once_and_alone_empties_the_trash(root):
    code = code_of(root, finished(root), "a")
    finished(root, OTHER)
    rm.main([NAME])
    assert re.search(": 1 run, .*`rm --now` frees the space", trash.told(str(root)))
    assert rm.main(["--now", "--yes", "calm"]) == 0 and trashed(root) == [NAME]
    (taken,) = root.glob(f".trash/*/{NAME}")
    with pytest.raises(UsageError, match="is in the trash; rm --now deletes it"):
        rm.main([str(taken)])
    with pytest.raises(UsageError, match=r"empties the trash; .*say --yes"):
        rm.main(["--now"])
    assert code.exists() and trashed(root) == [NAME]
    assert rm.main(["--now", "--yes"]) == 0 and os.listdir(root / ".trash") == os.listdir(root / ".code") == []


def test_one_that_can_not_be_deleted_keeps_no_other(root, capsys):
    held = finished(root)
    lock, free = (["chattr", "+i"], ["chattr", "-i"]) if os.geteuid() == 0 else (["chmod", "500"], ["chmod", "700"])
    others = [finished(root, OTHER), *sweep(root, 3)]
    for folder in (held, *others):
        store.mark_unfinished(root, folder.name)
    if subprocess.run([*lock, held]).returncode:
        pytest.skip("chattr +i does nothing on this file system")
    try:
        with pytest.raises(LauncherError, match=f"rm: {held} could not be deleted: "):
            rm.main(["--now", NAME, OTHER, SWEEP])
        assert selection.run_names(str(root)) == os.listdir(root / ".unfinished") == [NAME]
        assert capsys.readouterr().out.splitlines() == [f"{folder.name}  deleted" for folder in others]
    finally:
        subprocess.run([*free, held], check=True)


def test_an_interrupt_begins_no_further_deletion(root):
    runs, begun = [Run(str(root), str(number)) for number in range(100)], []

    def delete(run):
        begun.append(run)
        time.sleep(0.02 * (run is not runs[0]))

    def interrupted(run):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trash.side_by_side(delete, runs, interrupted)
    assert len(begun) < len(runs)


@users.needs_root
def test_anothers_trash_takes_and_gives_nothing(root):
    finished(root)
    theirs = root / ".trash/20200101-000000" / OTHER
    theirs.mkdir(parents=True)
    os.chown(root / ".trash", 61001, -1)
    with pytest.raises(UsageError, match="is not a folder of yours"):
        rm.main([NAME])
    assert rm.main(["--now", "--yes"]) == 0
    assert rm.main(["--now", NAME]) == 0 and theirs.exists()


def test_emptying_the_trash_takes_environments_that_no_run_uses(root, capsys):
    place = root / uv_environment.FOLDER
    names = [f"{letter * 24}-linux-x86_64" for letter in "abcdef"]
    for name in names:
        (place / name / "lib").mkdir(parents=True)
        (place / name / "lib/module.py").write_bytes(bytes(100_000))
        (place / f"{name}.log").touch()
        (place / name / ".made").touch()
        os.utime(place / name / ".made", (0, 0))
    (place / names[1] / ".made").touch()  # just now: its run is about to be submitted
    (place / names[2] / ".made").unlink()  # it is being made
    kept, gone = finished(root), finished(root, OTHER)
    store.write_json(kept / "plan.json", {"uv": {"name": names[3]}})
    store.write_json(kept / "attempts/1/plan.json", {"uv": {"name": names[4]}})
    store.write_json(gone / "plan.json", {"uv": {"name": names[0]}})
    assert rm.main([OTHER]) == 0
    assert all((place / name).exists() for name in names), "what is in the trash may come back"
    with open(place / f"{names[5]}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        capsys.readouterr()
        assert rm.main(["--now", "--yes"]) == 0
    assert [name for name in names if (place / name).exists()] == names[1:]
    assert not (place / f"{names[0]}.log").exists()
    *_, line = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"{place}/{names[0]}  deleted, 1\d\d KiB: no run uses this environment any more", line), line
    (place / f"{names[5]}.log").unlink()
    assert rm.main(["--now"]) == 0  # with nothing in the trash
    assert names[5] in capsys.readouterr().out
