"""Searches with real optuna and real runs: to their end, killed, interrupted, pruned, without a metric."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.__main__ import main
from launcher.errors import Unavailable
from launcher.executors import backends, submission
from launcher.executors.local.start import StartRefused
from launcher.runs import run_files, run_ids, selection, store
from launcher.runs.store import Run
from launcher.search import driver
from launcher.search.study import Study
from tests.launcher.executors.test_notices import program, told
from tests.launcher.run_folders import command, end_all, until
from tests.launcher.slurm.bench import enter

SCRIPT = """
import os, sys, time
from amp_launcher import job
x, wait = float(sys.argv[1]), sys.argv[2]
step = 0
while step < 8 or (wait.startswith("/") and not os.path.exists(wait)):
    step += 1
    job.log(step, score=1 - (x - 0.3) ** 2)
    time.sleep(0.02)
if wait == "fail":
    sys.exit("no")
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "EVERY", 0.1)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train.py"


def words(root: Path, *more: str, wait: str = "no") -> list[str]:
    """A search over x, of a script that trains until the file `wait` is there."""
    own = ["train.py", "amp=none", "telemetry.every=0", f"run_root={root}", "search=optuna", "search.metric=score"]
    return [*own, "sweep.x=interval(0,1.0)", *more, "--", "{x}", wait]


def sweep_in(root: Path) -> str:
    (sweep,) = selection.sweep_names(str(root))
    return sweep


def states(root: Path) -> list[tuple[str, str]]:
    """The runs of the search with their states, by their numbers."""
    seen = backends.states_of(selection.sweep_runs(str(root), sweep_in(root)))
    return sorted((row.run.id.rpartition("-")[2], row.state.name) for row in seen)


@contextlib.contextmanager
def started(arguments: list[str], out: Path) -> Iterator[subprocess.Popen[bytes]]:
    with out.open("wb") as stream:
        process = subprocess.Popen(command(*arguments), stdout=stream, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_search_ends_with_its_trials_best_first_and_what_repeats_the_best(
    script: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words(root, "search.trials=4", "search.parallel=2", "sweep.seed=1,2"), "{seed}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"search of 4 trials by score, highest first, 2 at once", out)
    best = 0.0
    said = re.findall(r": score ([\d.]+)(, the best so far)?$", out[: out.index("RUN")], re.MULTILINE)
    for score, is_best in said:
        assert float(score) == best or bool(is_best) is (float(score) > best), out
        best = max(best, float(score))
    assert len(said) == 4
    table = out[out.index("RUN") :].splitlines()
    scores = [float(line.split()[table[0].split().index("SCORE")]) for line in table[1:5]]
    assert scores == sorted(scores, reverse=True) and "4 done" in table[5]
    number = table[1].split()[0]
    assert re.search(rf"best +{number}, score ", out)
    assert states(root) == [(f"{number:03d}", "done") for number in range(4)]
    again = re.search(r"again +python -m launcher (.+)", out)
    assert (
        again
        and "search." not in again[1].replace(str(root), "")
        and re.search(r"sweep.x=[\d.]+ sweep.seed=[12] -- ", again[1])
    )

    assert main(["ls", sweep_in(root)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(number)
    assert main(["report", sweep_in(root)]) == 0
    report = capsys.readouterr().out
    assert f"A search by score, highest first. The best is {number} " in report
    assert main(["resume", sweep_in(root)]) == 2
    assert "has had its 4 trials; say search.trials=N for more" in capsys.readouterr().err
    assert main(["resume", sweep_in(root), "amp=o1"]) == 2
    assert "a search continues with the words that it began with" in capsys.readouterr().err


def test_a_search_is_told_of_once_at_its_end(script: Path, root: Path, tmp_path: Path) -> None:
    notify = f"notify={program(tmp_path)} {tmp_path}/told"
    (tmp_path / "token").write_text("score")  # a text that is in each result
    (tmp_path / "token").chmod(0o600)
    assert main(words(root, "search.trials=3", notify, f"secrets.TOKEN={tmp_path}/token")) == 0
    assert main(["resume", sweep_in(root), "search.trials=4"]) == 0
    notices = told(tmp_path / "told")
    assert [notice["text"] for notice in notices] == [f"{sweep_in(root)}: {trials} done" for trials in (3, 4)]
    assert [len(notice["runs"]) for notice in notices] == [3, 4]
    assert {run["status"]["state"] for run in notices[1]["runs"]} == {"done"}
    assert "score" not in json.dumps(notices) and '"***"' in json.dumps(notices)


def test_a_search_that_another_process_does_is_refused_and_once_killed_goes_on_with_no_trial_lost_or_doubled(
    script: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    more = ["search.trials=6", "search.parallel=2", "search.prune=false"]
    with started(words(root, *more, wait=str(go)), tmp_path / "out") as search:
        until(lambda: selection.sweep_names(str(root)) and [name for _, name in states(root)] == ["running"] * 2)
        assert main(["resume", sweep_in(root)]) == 2
        assert "is being searched by another process" in capsys.readouterr().err
        search.send_signal(signal.SIGKILL)
        search.wait()
    before = {run.id: (run.folder / "plan.json").read_text() for run in selection.sweep_runs(str(root), sweep_in(root))}
    script.write_text("raise SystemExit('edited')")  # trials run the code that the search began with
    go.touch()
    monkeypatch.chdir("/")
    assert main(["resume", sweep_in(root)]) == 0
    captured = capsys.readouterr()
    assert "the code was edited since" in captured.err
    assert states(root) == [(f"{number:03d}", "done") for number in range(6)]
    for run, plan in before.items():
        assert (root / run / "plan.json").read_text() == plan and store.attempts(root / run) == [1]
    plans = [
        json.loads((run.folder / "plan.json").read_text()) for run in selection.sweep_runs(str(root), sweep_in(root))
    ]
    assert len({plan["code"] for plan in plans}) == 1 and len({str(plan["swept"]) for plan in plans}) == 6


def test_a_trial_whose_search_was_killed_before_it_was_submitted_is_submitted_once(
    script: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    real = submission.start

    def start(folders: list[Path], plans: list[object]) -> None:
        if folders[0].name.endswith("-001"):
            raise Killed
        real(folders, plans)

    monkeypatch.setattr(submission, "start", start)
    monkeypatch.setattr(submission, "_discard", lambda *folders, **how: None)  # as a kill leaves them
    with pytest.raises(Killed):
        main(words(root, "search.trials=3"))
    assert (root / f"{sweep_in(root)}-001" / "plan.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr(driver, "EVERY", 0.1)
    assert main(["resume", sweep_in(root), f"run_root={root}"]) == 0
    assert states(root) == [("000", "done"), ("001", "done"), ("002", "done")]
    assert "3 done" in capsys.readouterr().out


def test_ctrl_c_leaves_the_trials_that_run_and_says_how_to_go_on(script: Path, root: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with started(words(root, "search.trials=2", wait=str(go)), tmp_path / "out") as search:
        until(lambda: selection.sweep_names(str(root)) and states(root) == [("000", "running")])
        search.send_signal(signal.SIGINT)
        assert search.wait() == 130
    name = run_ids.words_of(sweep_in(root))
    text = (tmp_path / "out").read_text()
    assert f"1 trial runs on; `resume {name}` continues the search, `cancel {name}` ends what runs" in text
    assert "Traceback" not in text and states(root) == [("000", "running")]
    go.touch()
    until(lambda: states(root) == [("000", "done")])


def test_cancelling_what_runs_ends_the_search(script: Path, root: Path, tmp_path: Path) -> None:
    with started(words(root, "search.trials=9", wait=str(tmp_path / "never")), tmp_path / "out") as search:
        until(lambda: selection.sweep_names(str(root)) and states(root) == [("000", "running")])
        assert main(["cancel", "--now", sweep_in(root)]) == 0
        assert search.wait() == 1
    assert states(root) == [("000", "cancelled")]
    assert "were cancelled, so no more are asked for" in (tmp_path / "out").read_text()


def test_a_trial_that_most_were_better_than_is_cancelled(
    script: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = iter([0.3, 0.31, 0.32, 0.33, 0.34, 0.9])
    real = Study.ask

    def ask(study: Study) -> tuple[int, dict[str, str]]:
        """The last trial is bad, and has no end."""
        study._study.enqueue_trial({"sweep.x": (value := next(values)), "sweep.wait": "no" if value < 0.9 else "/no"})
        return real(study)

    monkeypatch.setattr(Study, "ask", ask)
    own = [*words(root, "search.trials=6", "sweep.wait=no,/no")[:-1], "{wait}"]
    assert main(own) == 0
    assert states(root) == [*[(f"{number:03d}", "done") for number in range(5)], ("005", "cancelled")]
    assert re.search(r"005 x=0.9 \S+  cancelled: pruned at step \d+, where most were better", capsys.readouterr().out)


def test_a_metric_that_never_comes_ends_the_search_with_what_was_measured(
    script: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word.replace("=score", "=scor") for word in words(root, "search.trials=9")]
    assert main(arguments) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "search.metric=scor never came" in error and "has measured score, rate" in error
    assert states(root) == [("000", "done")]


def test_trials_that_all_fail_end_the_search(script: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(root, "search.trials=9", wait="fail")) == 1
    assert "3 trials failed and none is done; the last: " in capsys.readouterr().err
    assert [name for _, name in states(root)] == ["failed"] * 3


def test_a_trial_that_finds_no_gpus_waits_until_another_one_ends(
    script: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = submission.start

    def start(folders: list[Path], plans: list[object]) -> None:
        if [name for _, name in states(root)].count("done") < len(selection.run_names(str(root))) - 1:
            raise StartRefused("its GPUs are taken")
        real(folders, plans)

    monkeypatch.setattr(submission, "start", start)
    assert main(words(root, "search.trials=3", "search.parallel=2")) == 0
    assert states(root) == [("000", "done"), ("001", "done"), ("002", "done")]
    out = capsys.readouterr().out
    assert out.count("001 waits: its GPUs are taken") == out.count("002 waits: its GPUs are taken") == 1
    assert main(["rm", sweep_in(root)]) == 0
    assert list((root / store.SWEEPS).iterdir()) == []


def test_a_refusal_of_the_first_trial_leaves_nothing(
    script: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise Unavailable("no GPU is free")

    monkeypatch.setattr(submission, "start", refuse)
    assert main(words(root)) == 3
    assert "error: no GPU is free\n" in capsys.readouterr().err, "nothing is left to continue"
    assert selection.run_names(str(root)) == []
    assert list((root / store.SWEEPS).iterdir()) == []


@pytest.mark.testbed
def test_a_search_on_slurm_asks_as_slots_get_free(
    testbed, script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(testbed, monkeypatch)
    monkeypatch.setenv("LAUNCHER_ASK_EVERY", "0.5")
    root = Path(testbed.shared, f"search-{uuid.uuid4().hex[:8]}")
    root.mkdir(mode=0o755)
    try:
        more = ["search.trials=3", "search.parallel=2", "cluster=slurm", "gpus=0", f"python={sys.executable}"]
        assert main(words(root, *more)) == 0
        assert states(root) == [("000", "done"), ("001", "done"), ("002", "done")]
        runs = [Run(str(root), f"{sweep_in(root)}-{number:03d}") for number in range(3)]
        assert [run_files.load(run.path).submitted.queue for run in runs] == ["slurm"] * 3
        assert re.search(r"best +00[012], score ", capsys.readouterr().out)
    finally:
        end_all(root)
        shutil.rmtree(root, ignore_errors=True)
