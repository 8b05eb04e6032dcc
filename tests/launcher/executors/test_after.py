"""`after=RUN` on a machine without a scheduler: the run's own script waits for the other run."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors import stopping
from launcher.runs import selection, store
from launcher.runs.store import Run
from tests.launcher.run_folders import state, until

BARE = ("recipe=script", "train.bare=true", "train.precision=script", "require_proof=false", "gpus=0", "detach=true")


@pytest.fixture
def start(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def start(text: str, *words: str) -> list[Path]:
        (tmp_path / "train.py").write_text(text)
        code = main([*BARE, f"script={tmp_path}/train.py", f"run_root={root}", "telemetry.every=0", *words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return [root / name for name in printed.out.split()]

    return start


LONG = "import time; time.sleep(60)"


def ends_when(file: Path, code: int = 0) -> str:
    return f"import os, sys, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.1)\nsys.exit({code})\n"


def test_after_a_failed_run_only_any_starts(start, tmp_path: Path) -> None:
    (first,) = start(ends_when(tmp_path / "go", 3))
    (never,) = start("", f"after={first.name}")
    (anyway,) = start("", f"after=any:{first.name}")
    until(lambda: state(never).name == state(anyway).name == "queued")
    (tmp_path / "go").touch()
    until(lambda: state(never).finished and state(anyway).finished)
    assert state(never)[:2] == ("cancelled", f"it never started: it was to come after {first.name}, which failed")
    assert state(anyway).name == "done"


def test_after_a_run_that_has_failed_already_is_refused(
    start, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (failed,) = start("raise SystemExit(3)")
    until(lambda: state(failed).finished)
    for verb in ("run", "plan"):
        assert main([verb, *BARE, f"script={tmp_path}/train.py", f"run_root={root}", f"after={failed.name}"]) == 2
        assert f"{failed.name} has ended as failed, so nothing can start after it" in capsys.readouterr().err
    assert selection.run_names(str(root)) == [failed.name]
    (anyway,) = start("", f"after=any:{failed.name}")
    until(lambda: state(anyway).name == "done")


def test_a_run_that_has_begun_is_resumed_without_the_one_that_it_came_after(start) -> None:
    (first,) = start("")
    (second,) = start("import os, sys; sys.exit(os.environ['LAUNCHER_ATTEMPT'] == '1')", f"after={first.name}")
    until(lambda: state(second).finished)
    shutil.rmtree(first)
    assert main(["resume", second.name, f"run_root={second.parent}"]) == 0
    assert (state(second).name, state(second).attempt) == ("done", 2)


def test_a_run_that_was_cancelled_while_it_waited_waits_again_when_it_is_resumed(start, tmp_path: Path) -> None:
    (first,) = start(ends_when(tmp_path / "go"))
    (second,) = start("", f"after={first.name}")
    until(lambda: state(second).name == "queued")
    assert main(["cancel", "--now", second.name, f"run_root={second.parent}"]) == 0
    assert main(["resume", second.name, f"run_root={second.parent}", "detach=true"]) == 0
    time.sleep(2)
    assert (state(first).name, state(second).name) == ("running", "queued")
    (tmp_path / "go").touch()
    until(lambda: state(second).name == "done")


@pytest.mark.parametrize("end", ["cancelled", "lost"])
def test_a_run_that_waits_can_be_cancelled_alone_and_sees_any_end_of_the_one_that_it_waits_for(start, end: str) -> None:
    (first,) = start(LONG)
    until(lambda: state(first).name == "running")
    (second,), (third,) = (start("", f"after={first.name}") for _ in range(2))
    for waiting in (second, third):
        until(lambda folder=waiting: state(folder).name == "queued" and "waiting" in state(folder).reason)
    (ended,) = stopping.cancel([Run(str(third.parent), third.name)])
    assert (ended.seen.state.name, ended.why_not, state(first).name) == ("cancelled", "", "running")
    if end == "lost":
        os.kill(store.read_or_empty(first / "status.json")["process"]["pid"], signal.SIGKILL)
    else:
        stopping.cancel([Run(str(first.parent), first.name)], now=True)
    until(lambda: state(second).finished)
    assert state(second)[:2] == ("cancelled", f"it never started: it was to come after {first.name}, which is {end}")


def test_a_sweep_waits_for_the_sweep_that_it_comes_after_and_then_starts(start, tmp_path: Path) -> None:
    first = start(ends_when(tmp_path / "go"), "env.PART=choice(1,2)")
    sweep = first[0].name.rpartition("-")[0]
    second = start("", f"after={sweep}", "env.PART=choice(1,2)")
    until(lambda: state(second[0]).reason == f"waiting for {first[0].name}, which it comes after")
    time.sleep(1.5)
    assert state(second[0]).name == "queued"
    (tmp_path / "go").touch()
    until(lambda: all(state(cell).finished for cell in second), 60)
    assert [state(cell).name for cell in [*first, *second]] == ["done"] * 4


@pytest.mark.parametrize(
    ("after", "says"),
    [("nosuch", "no run"), ("any:", "after=any:: say after=RUN"), ("sometimes:x", "after=sometimes:x: say after=RUN")],
)
def test_after_a_run_that_is_none_leaves_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], after: str, says: str
) -> None:
    (tmp_path / "train.py").write_text("")
    assert main([*BARE, f"script={tmp_path}/train.py", f"run_root={root}", f"after={after}"]) == 2
    assert says in capsys.readouterr().err
    assert selection.run_names(str(root)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_after_another_users_run_is_refused(
    start, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = start("")
    until(lambda: state(first).name == "done")
    os.chown(first, 65534, -1)
    assert main([*BARE, f"script={tmp_path}/train.py", f"run_root={root}", f"after={first.name}"]) == 2
    assert f"after={first.name}: {first.name} belongs to" in capsys.readouterr().err
    os.chown(first, 0, -1)
    assert selection.run_names(str(root)) == [first.name]
