"""`chain`: jobs that need each other, from one file, on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.executors.local import start as local_start
from launcher.runs import run_roots, selection, store
from tests.launcher.run_folders import state, until

PREPARE = """\
#!/bin/sh
while [ ! -e "$1/go" ]; do sleep 0.1; done
[ ! -e "$1/broken" ] && echo "prepared $LAUNCHER_RUN_ID"
"""
CHAIN = """\
evaluate:
  needs: [train, any:prepare]
  words: evaluate.py {bare}
train:
  needs: prepare
  words: run train.py {bare} -- --lr 0.1
prepare:
  words: cmd -- ./prepare.sh {folder}
"""
BARE = "amp=none train.bare=true telemetry.every=0"
NAMES = ["prepare", "train", "evaluate"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "prepare.sh").write_text(PREPARE)
    (folder / "prepare.sh").chmod(0o755)
    for name in ("train.py", "evaluate.py"):
        (folder / name).write_text("import sys; print(sys.argv)")
    (folder / "nightly.yaml").write_text(CHAIN.format(bare=BARE, folder=folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def start(project: Path, root: Path, capsys: pytest.CaptureFixture[str]):
    def start(*words: str) -> list[Path]:
        code = main(["chain", "nightly.yaml", "gpus=0", f"run_root={root}", "detach=true", *words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return [root / name for name in printed.out.split()]

    return start


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    """The rows of `ls`, by words."""
    capsys.readouterr()
    assert main(["ls", *words]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def states(folders: list[Path]) -> list[str]:
    return [state(folder).name for folder in folders]


def test_a_chain_is_listed_with_its_graph_and_a_dependent_with_what_it_waits_for(
    start, project: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = start()
    chain = folders[0].name.rpartition("-")[0]
    words = chain.partition("-")[2].partition("-")[2]
    until(lambda: states(folders) == ["running", "queued", "queued"])
    until(lambda: all("waiting" in state(folder).reason for folder in folders[1:]))
    header, *rows = listed(capsys, f"run_root={root}")
    at = header.index("WAITS")
    waits = {row[0]: row[at] for row in rows}
    assert waits == {folders[2].name: f"{words}-001", folders[1].name: f"{words}-000", folders[0].name: "-"}
    header, *rows, total = listed(capsys, chain, f"run_root={root}")
    assert header[:4] == ["RUN", "JOB", "NEEDS", "STATE"]
    assert [row[:5] for row in rows] == [
        ["000", "prepare", "-", "running", rows[0][4]],
        ["001", "train", "prepare", "queued", rows[1][4]],
        ["002", "evaluate", "train,", "any:prepare", "queued"],
    ]
    assert total[:2] == ["chain", f"{chain}:"]
    (project / "go").touch()
    until(lambda: states(folders) == ["done"] * 3)
    capsys.readouterr()
    assert main(["logs", chain, "train", f"run_root={root}"]) == 0
    assert "'--lr', '0.1'" in capsys.readouterr().out
    ended = [store.read_or_empty(folder / "status.json") for folder in folders]
    assert ended[0]["ended"] <= ended[1]["started"] and ended[1]["ended"] <= ended[2]["started"]
    assert main(["ls", chain, "--csv", f"run_root={root}"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{chain}-000,prepare,,done,")
    plan = json.loads((folders[2] / "plan.json").read_text())
    assert (plan["job"], plan["after"]) == ("evaluate", f"{folders[1].name},any:{folders[0].name}")
    assert plan["command"][:2] == ["chain", "nightly.yaml"]


def test_a_chain_is_cancelled_as_one(start, root: Path) -> None:
    folders = start()
    until(lambda: state(folders[0]).name == "running")
    until(lambda: all("waiting" in state(folder).reason for folder in folders[1:]))
    assert main(["cancel", "--now", folders[0].name.rpartition("-")[0], f"run_root={root}"]) == 0
    assert states(folders) == ["cancelled"] * 3


def test_what_waited_for_a_failed_job_is_resumed_with_it_and_waits_again(start, project: Path, root: Path) -> None:
    (project / "broken").touch()
    (project / "go").touch()
    folders = start()
    until(lambda: all(state(folder).finished for folder in folders))
    assert states(folders) == ["failed", "cancelled", "cancelled"]
    assert state(folders[1]).reason == f"it never started: it was to come after {folders[0].name}, which failed"
    chain = folders[0].name.rpartition("-")[0]
    # A dependent alone would never start.
    assert main(["resume", folders[1].name, f"run_root={root}"]) == 2
    (project / "broken").unlink()
    (project / "go").unlink()
    assert main(["resume", chain, "failed", f"run_root={root}", "detach=true"]) == 0
    until(lambda: state(folders[0]).name == "running")
    until(lambda: all("waiting" in state(folder).reason for folder in folders[1:]))
    (project / "go").touch()
    until(lambda: all(state(folder).finished for folder in folders))
    assert states(folders) == ["done"] * 3


def test_a_job_that_comes_after_a_done_one_is_resumed_alone(start, project: Path, root: Path) -> None:
    (project / "train.py").write_text("import os; os._exit(os.environ['LAUNCHER_ATTEMPT'] == '1')")
    (project / "go").touch()
    folders = start()
    until(lambda: all(state(folder).finished for folder in folders))
    assert states(folders) == ["done", "failed", "cancelled"]
    shutil.rmtree(folders[0])  # which the others no longer need
    assert main(["resume", folders[0].name.rpartition("-")[0], "failed", f"run_root={root}"]) == 0
    assert states(folders[1:]) == ["done", "done"]


def test_the_plan_of_a_chain_starts_nothing(project: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chain", "nightly.yaml", "--plan", f"run_root={root}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["JOB", *NAMES]
    assert [row[1] for row in rows] == ["NEEDS", "-", "prepare", "train,"]
    assert selection.run_names(str(root)) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "cmd -- ./prepare.sh",
            "cmd -- ./nosuch.sh",
            "nightly.yaml:8: cmd -- ./nosuch.sh: there is no such file here;",
        ),
        ("run train.py", "run nosuch.py", "nightly.yaml:6: script=nosuch.py: there is no such file; "),
        ("run train.py", "run train.py stepz=1", "-- --stepz 1 (nightly.yaml:6) (job train; nothing was started)"),
        (
            "run train.py",
            "run train.py gpus=x",
            "gpus=x should be a whole number, or TYPE:NUMBER, as a100:4 (nightly.yaml:6) (job train",
        ),
        ("run train.py", "run train.py gpus=9", "(nightly.yaml:6) (job train; nothing was started)"),
        ("run train.py", "plan train.py", "nightly.yaml:6: plan starts no job"),
        ("run train.py", "run --help train.py", "nightly.yaml:6: --help and --cfg start no job"),
        (
            "run train.py",
            "run train.py env.PART=choice(1,2)",
            "nightly.yaml:6: a job of a chain is one run, and these words are a ",
        ),
        (
            "run train.py {bare} -- --lr 0.1",
            "experiment=twcc_resnet50",
            "nightly.yaml:6: a comparison is no job of a chain",
        ),
        ("run train.py", "run train.py after=nosuch", "nightly.yaml:6: no run 'nosuch'"),
        ("run train.py", "run train.py run_root=/tmp/x", "nightly.yaml: run_root differs between jobs"),
        (
            "needs: prepare",
            "needs: evaluate",
            "nightly.yaml:5: the jobs need each other: evaluate needs train needs evaluate",
        ),
    ],
)
def test_a_word_that_is_wrong_in_one_job_starts_none(
    project: Path, root: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    text = (project / "nightly.yaml").read_text()
    (project / "nightly.yaml").write_text(text.replace(old.format(bare=BARE), new))
    own = [] if "run_root=" in new else [f"run_root={root}"]
    assert main(["chain", "nightly.yaml", "detach=true", *own]) == 2
    assert says in capsys.readouterr().err
    assert selection.run_names(str(root)) == []
    assert all(selection.run_names(other) == [] for other in run_roots.known())


def test_a_wrong_word_behind_the_file_is_the_command_lines(
    project: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chain", "nightly.yaml", "stepz=3", f"run_root={root}"]) == 2
    assert "stepz is not a key of the launcher" in (said := capsys.readouterr().err) and "(command line)" in said


def test_scripts_that_would_take_each_others_place_in_the_code_are_refused(
    project: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.parent / "other").mkdir()
    (project.parent / "other/train.py").write_text("print('another')")
    text = (project / "nightly.yaml").read_text()
    (project / "nightly.yaml").write_text(text.replace("evaluate.py", "../other/train.py"))
    assert main(["chain", "nightly.yaml", f"run_root={root}"]) == 2
    said = capsys.readouterr().err
    assert f"{project}/train.py and {project.parent}/other/train.py would be one file of the code" in said
    assert selection.run_names(str(root)) == []


def test_a_chain_of_which_a_part_is_refused_leaves_nothing(
    project: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, started = local_start.start_here, []

    def first_alone(folders, plans) -> None:
        started.extend(folders)
        if plans[0].job == "train":
            raise local_start.StartRefused("no more processes")
        begin(folders, plans)

    monkeypatch.setattr(local_start, "start_here", first_alone)
    assert main(["chain", "nightly.yaml", f"run_root={root}", "detach=true"]) == 3
    assert len(started) == 2 and not any(folder.exists() for folder in started)
    assert selection.run_names(str(root)) == []


def test_a_chain_over_ssh_waits_there_and_what_failed_is_resumed_with_what_waited(
    over_ssh, bed, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Path(over_ssh[-1].partition("=")[2])
    text = (project / "nightly.yaml").read_text()
    (project / "nightly.yaml").write_text(text.replace(f"./prepare.sh {project}", f"./prepare.sh {there}"))
    (there / "broken").touch()
    (there / "go").touch()
    assert main(["chain", "nightly.yaml", "gpus=0", *over_ssh]) == 0
    folders = [Path(run_roots.remote(), name) for name in capsys.readouterr().out.split()]
    chain = folders[0].name.rpartition("-")[0]
    until(lambda: all(state(folder).finished for folder in folders), every=0.5)
    assert states(folders) == ["failed", "cancelled", "cancelled"]
    (there / "broken").unlink()
    assert main(["resume", chain, "failed"]) == 0
    until(lambda: states(folders) == ["done"] * 3, every=0.5)
    rows = listed(capsys, chain)
    assert [row[1] for row in rows[1:4]] == NAMES
