"""What the command that submits prints and returns, of runs that have ended or are cancelled."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.config.schema import Launch, LocalCluster, SlurmCluster
from launcher.executors import base, interrupts, stopping
from launcher.runs import processes, store
from launcher.ui import foreground
from tests.launcher.compare import folders as comparisons
from tests.launcher.run_folders import NAME, SWEEP, finished, make, submit, sweep

SCRIPT = {"file": "train.py", "workdir": "/", "arguments": [], "in_image": False}


def words(states: Any, width: int) -> list[str]:
    return [f"the end of {len(states)}"]


def test_a_local_run_is_followed_unless_it_is_detached_and_another_one_where_that_is_asked_for() -> None:
    for detach, wait in ((False, False), (True, True)):
        assert foreground.stays(Launch(cluster=LocalCluster(), detach=detach, wait=wait)) is not detach
        assert foreground.stays(Launch(cluster=SlurmCluster(), detach=detach, wait=wait)) is wait


def test_whoever_leaves_gets_the_names_and_how_to_follow_them(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = sweep(root, 2, make)
    for folders, name in (([make(root)], NAME), (cells, SWEEP), (cells[:1], cells[0].name)):
        assert foreground.leave(folders) == 0
        out, err = capsys.readouterr()
        assert out.splitlines() == [folder.name for folder in folders]
        assert err.rstrip().endswith(f" watch {name}")


@pytest.mark.parametrize(
    ("count", "interrupt", "code", "said"),
    [
        (1, None, 0, "submitted to local: time limit 5 minutes"),
        (2, None, 0, "submitted to local, for each run: time limit 5 minutes"),
        (1, KeyboardInterrupt, 130, "submitted before the interrupt; `cancel {}` ends it"),
        (2, interrupts.HandedOver, 130, "{} may have been started or not; `ls {}` says so, `cancel {}` ends it"),
    ],
)
def test_a_submission_says_what_it_asked_for_and_what_an_interrupt_leaves(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    interrupt: type[KeyboardInterrupt] | None,
    code: int,
    said: str,
) -> None:
    folders = sweep(root, 2) if count == 2 else [finished(root)]

    def submit(*given: object) -> list[Path]:
        if interrupt is interrupts.HandedOver:
            raise interrupts.HandedOver(folders)
        if interrupt:
            signal.raise_signal(signal.SIGINT)
        return folders

    monkeypatch.setattr(base, "submit", submit)
    plans: Any = [SimpleNamespace(cluster={"kind": "local", "time": "5"})] * count
    specs: Any = [SimpleNamespace(launch=Launch(cluster=LocalCluster(), detach=True))] * count
    facts: Any = None
    assert foreground.submit_and_follow(plans, facts, specs, words) == code
    name = SWEEP if count == 2 else NAME
    assert said.format(name, name, name) in capsys.readouterr().err.splitlines()


def test_runs_that_are_done_are_told_of_and_one_that_is_not_fails_the_command(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, failed = finished(root, f"{SWEEP}-000"), finished(root, f"{SWEEP}-001", "failed")
    for folders, code in (([done], 0), ([failed], 1), ([done, failed], 1)):
        assert foreground.stay(folders, words) == code
        assert f"the end of {len(folders)}" in capsys.readouterr().out


@pytest.mark.parametrize(("arms", "several", "printed"), [(0, 0, True), (2, 0, False), (0, 1, False)])
def test_the_output_of_a_single_script_is_shown_and_neither_that_of_arms_nor_of_several(
    root: Path, capfd: pytest.CaptureFixture[str], arms: int, several: int, printed: bool
) -> None:
    folders = sweep(root, 1 + several, state="failed")
    for folder in folders:
        comparisons.plan_of(folder, *[("o1", [])] * arms)
        plan = json.loads((folder / "plan.json").read_text())
        store.write_json(folder / "plan.json", {**plan, "script": SCRIPT})
        (folder / "attempts/1/stdout.log").write_text("printed\n")
    foreground.stay(folders, words)
    out = capfd.readouterr().out
    assert (out.count("printed"), "the end of" in out) == (int(printed), not printed), "the end does not repeat it"


def test_the_first_ctrl_c_asks_those_to_stop_that_can_and_the_second_kills(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = make(root), []
    own = processes.identity(os.getpid())
    assert own
    submit(folder, own)

    def request_stop(folder: Path) -> None:
        asked.append("stop")
        signal.raise_signal(signal.SIGINT)

    def kill_all(folders: list[Path]) -> None:
        asked.append("kill")
        shutil.rmtree(folder)
        finished(root)

    monkeypatch.setattr(interrupts, "_presses", [signal.SIGINT])
    monkeypatch.setattr(stopping, "request_stop", request_stop)
    monkeypatch.setattr(stopping, "kill_all", kill_all)
    assert foreground.stay([folder], words) == 130
    assert asked == ["stop", "kill"]
