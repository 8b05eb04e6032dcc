"""`launch` and the runs that it gives, in a plain program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from launcher import LauncherError, SlurmExecutor, execute, find, launch
from launcher.notebook import runs as notebook_runs
from launcher.notebook.runs import Runs
from launcher.runs import selection
from launcher.ssh import host
from tests.launcher import warm
from tests.launcher.run_folders import end_all, until
from tests.launcher.slurm.bench import enter
from tests.launcher.ssh.trainer import PROGRAM
from tests.launcher.ssh.ways import configuration

REAL = ("recipe=simplenet", "batch=16", "train.width=32", "device=cpu", "telemetry.every=0")

EXPERIMENT = """\
words: [recipe=simplenet, batch=16, train.width=32, device=cpu, telemetry.every=0]
compare: {rounds: 1, steps: 5, cool_down: 0}
arms:
  - {name: plain, words: [amp=o0]}
  - {name: half, words: [amp=o1]}
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_runs, "EVERY", 0.1)


def stand_in(folder: Path) -> list[str]:
    """Words of runs by a stand-in for the trainer's Python."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PROGRAM)
    python.chmod(0o755)
    return [f"python={python}", f"run_root={folder}/runs", "telemetry.every=0", "steps=3"]


def test_a_sweep_is_submitted_at_once_and_tells_what_it_measured(root: Path) -> None:
    runs = launch(*REAL, "amp=o0,o1", "steps=3", f"run_root={root}", f"python={warm.python()}")
    assert len(runs) == 2 and {run.state for run in runs} <= {"queued", "running"}
    runs.wait()
    first, second = repr(runs).splitlines()[1:3]
    assert first.split()[:3] == ["000", "o0", "done"] and second.split()[:3] == ["001", "o1", "done"]
    assert first.endswith("proved")
    rows = runs[1].metrics()
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[2]["loss"] == runs[1].result()["loss"]["last"]
    assert runs[0].job.result() == runs[0].result()
    report = runs.compare()
    assert "TimeoutError" not in repr(report) and "amp=o1" in repr(report)
    assert "srcdoc=" in report._repr_html_() and "<script" not in report._repr_html_()
    report.save(root / "report.html")
    assert (root / "report.html").read_text().startswith("<!doctype html>")
    assert runs[0].id in repr(runs[0].report()).splitlines()[0]
    assert [run.id for run in find(runs[0].id.rpartition("-")[0], run_root=str(root))] == [run.id for run in runs]
    with pytest.raises(LauncherError, match="two runs or more"):
        runs[:1].compare()


def test_a_table_escapes_what_runs_say_of_themselves(root: Path, tmp_path: Path) -> None:
    runs = launch(*stand_in(tmp_path), "env.BEHAVIOUR=choice('pass','<script>alert(1)</script>')")
    runs.wait()
    shown = runs._repr_html_()
    assert "&lt;script&gt;alert(1)" in shown and "<script" not in shown
    assert "failed" in shown and "exit code 1" in shown and "1 done, 1 failed" in repr(runs)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("amp=o9",), "amp=o9 is not one of o0, o1"),
        (("ampp=o1",), "unknown key ampp; did you mean amp? `python -m launcher run --help` lists all"),
        (("amp=o2", "gpus=99"), "gpus=99"),
        (("ls",), "'ls' is neither"),
        ((128,), "and not 128"),
        (("--help",), "launch starts runs"),
        (("--cfg", "job"), "launch starts runs"),
        (("run_root=/proc/nothing",), "run_root=/proc/nothing"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing(words: tuple[str, ...], message: str, root: Path) -> None:
    with pytest.raises(LauncherError) as caught:
        launch(f"run_root={root}", *words)
    shown = caught.value._render_traceback_()  # what IPython shows
    assert len(shown) == 1 and shown[0].startswith("error: ") and message in shown[0]
    assert "(command line)" not in shown[0] and "\n" not in shown[0]
    assert selection.run_names(str(root)) == []


def test_what_is_no_run_is_not_found(root: Path) -> None:
    with pytest.raises(LauncherError, match="no run 'nowhere'"):
        find("nowhere", run_root=str(root))
    with pytest.raises(LauncherError, match="find takes names"):
        find()
    assert repr(Runs([])) == "no runs"


def test_waiting_ends_with_a_limit_and_cancelling_ends_the_runs(root: Path, tmp_path: Path) -> None:
    runs = launch(*stand_in(tmp_path), "steps=10000", "env.PAUSE=0.05", "seed=1,2")
    until(lambda: runs[0].metrics())
    with pytest.raises(LauncherError, match=r"2 of 2 runs have not ended after 0\.2 s"):
        runs.wait(0.2)
    runs.cancel()
    assert {run.state for run in runs} <= {"stopped", "cancelled"}


def test_an_experiment_is_launched_by_its_name_and_has_its_arms(root: Path, tmp_path: Path) -> None:
    (tmp_path / "config" / "amp-launcher" / "experiment").mkdir(parents=True)
    (tmp_path / "config" / "amp-launcher" / "experiment" / "mine.yaml").write_text(EXPERIMENT)
    runs = launch("experiment=mine", f"run_root={root}", f"python={warm.python()}")
    runs.wait()
    assert [(row["arm"], row["step"]) for row in runs[0].metrics()] == [
        (arm, step) for arm in ("plain", "half") for step in range(1, 6)
    ]
    assert "Throughput over that of plain" in repr(runs.compare())


def test_importing_the_package_loads_nothing_that_the_command_line_does_without() -> None:
    text = (
        "import sys, launcher; assert 'launch' in dir(launcher)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('hydra', 'submitit', 'yaml', 'rich')\n"
        "       or name.startswith('launcher.')])"
    )
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True).stdout == "[]\n"
    assert SlurmExecutor.__name__ == "SlurmExecutor" and callable(execute)
    with pytest.raises(ImportError, match="nothing"):
        exec("from launcher import nothing")


@pytest.mark.testbed
@pytest.mark.parametrize("place", ["slurm", "ssh"])
def test_the_same_words_reach_a_cluster_and_a_host(
    place: str, testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(testbed, monkeypatch)
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", "0.5")
    there = Path(testbed.shared, f"launch-{uuid.uuid4().hex[:8]}")
    there.mkdir(mode=0o755)
    words = ["cluster=slurm", "gpus=0", *stand_in(there)]
    if place == "ssh":
        words = [
            "cluster=ssh",
            "cluster.host=box",
            f"cluster.ssh_config={configuration(tmp_path, testbed)}",
            *words[2:],
        ]
        for path in (there, there / "bin"):
            os.chown(path, testbed.user.uid, testbed.user.gid)
    try:
        runs = launch(*words, "seed=1,2")
        runs.wait(300)
        assert "2 done" in repr(runs) and [row["step"] for row in runs[1].metrics()] == [1, 2, 3]
        assert json.dumps(runs[0].result()["eval"]) == '{"accuracy": 0.5}'
    finally:
        host.close_all()
        end_all(there / "runs")
        shutil.rmtree(there, ignore_errors=True)
