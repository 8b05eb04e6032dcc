"""`ls KEY=VALUE`: the runs that have these values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.commands import ls
from launcher.errors import UsageError
from launcher.runs import store
from tests.launcher.run_folders import SWEEP, finished, make, result, sweep

Shown = Callable[..., list[str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    def show(*arguments: str) -> list[str]:
        assert ls.main(list(arguments)) == 0
        return capsys.readouterr().out.splitlines()

    return show


DAYS = ("20260102-030405", "20260103-040000", "20260203-050000")
RUNS = {
    f"{DAYS[0]}-brave-otter": ("done", "mnist-o2", {"amp": {"level": "o2"}, "batch": 128}, [], 0.3),
    f"{DAYS[1]}-calm-fox": ("failed", "mnist-o2", {"amp": {"level": "o2"}, "batch": 256}, [["lr", "1e-3"]], None),
    f"{DAYS[2]}-wise-moth": ("failed", "night", {"amp": {"level": "o1"}, "tf32": None}, [], 0.1),
}


@pytest.fixture
def runs(root: Path) -> None:
    for name, (state, given, settings, swept, loss) in RUNS.items():
        folder = finished(root, name, state)
        more = {"gpus": 2, "nodes": 2, "framework": "torch", "cluster": {"kind": "local", "partition": "gpu"}}
        store.write_json(folder / "plan.json", {"name": given, "settings": settings, "swept": swept, **more})
        if loss is not None:
            store.write_json(folder / "result.json", result(loss={"first": 1.0, "last": loss}))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("state=failed", "calm-fox wise-moth"),
        ("state=failed,done", "brave-otter calm-fox wise-moth"),
        ("state=failed amp.level=o2", "calm-fox"),
        ("amp=o2", "brave-otter calm-fox"),
        ("amp=O2,o1", "brave-otter calm-fox wise-moth"),
        ("batch=128", "brave-otter"),
        ("tf32=null", "wise-moth"),
        ("name=night", "wise-moth"),
        ("name=mnist-*", "brave-otter calm-fox"),
        ("date=2026-01", "brave-otter calm-fox"),
        ("date=2026-01-02", "brave-otter"),
        ("date=2026-01-03..", "calm-fox wise-moth"),
        ("date=..2026-01-02", "brave-otter"),
        ("date=2026-01-03..2026-02", "calm-fox wise-moth"),
        ("cluster=local", "brave-otter calm-fox wise-moth"),
        ("cluster.partition=cpu", ""),
        ("sweep.lr=0.001", "calm-fox"),
        ("lr=1e-3", "calm-fox"),
        ("gpus=2 framework=torch", "brave-otter calm-fox wise-moth"),
    ],
)
def test_it_lists_the_runs_that_have_the_values(runs: None, shown: Shown, words: str, found: str) -> None:
    listed = shown(*words.split())
    table = [line.split()[0][16:] for line in listed[1:-1]]
    assert sorted(table) == found.split()
    objects = json.loads("\n".join(shown(*words.split(), "--json")))
    assert sorted(one["id"][16:] for one in objects) == found.split()
    if found:
        assert listed[-1].startswith(f"{len(table)} run{'s' * (len(table) > 1)}, ")
        assert listed[-1].endswith(f" in total, {65 * len(table) * 4 / 3600:.4g} GPU hours")


def test_an_old_run_is_found_behind_newer_ones(root: Path, shown: Shown) -> None:
    finished(root, f"{DAYS[0]}-brave-otter", "failed")
    for number in range(210):
        finished(root, f"20260110-{number:06}-calm-fox")
    (_, line, total) = shown("state=failed")
    assert line.startswith(f"{DAYS[0]}-brave-otter") and total.startswith("1 run, 1 failed")
    many = shown("state=done")
    assert len(many) == 62 and many[-1].startswith("the newest 60, 60 done") and many[-1].endswith("--all has the rest")
    assert len(shown("state=done", "--all")) == 212


def test_those_of_a_sweep_and_their_best(root: Path, runs: None, shown: Shown) -> None:
    for index, folder in enumerate(sweep(root, 4)):
        level = f"o{index % 2}"
        store.write_json(folder / "plan.json", {"settings": {"amp": {"level": level}}, "swept": [["amp", level]]})
        store.write_json(folder / "result.json", result(loss={"first": 1.0, "last": 0.1 * (4 - index)}))
    assert [line.split()[0] for line in shown("calm-lake", "amp=o1", "--sort", "loss")[1:-1]] == ["003", "001"]
    assert "2 of 4 runs" in shown("calm-lake", "amp=o1")[-1]
    table = list(csv.DictReader(io.StringIO("\n".join(shown("amp=o1,o2", "state=done", "--best", "2", "--csv")))))
    assert [row["run"][16:] for row in table] == ["calm-lake-003", "brave-otter"]
    assert SWEEP in table[0]["run"]
    assert [line.split()[0][16:] for line in shown("state=done", "--best", "1")[1:-1]] == ["calm-lake-003"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["state=fialed"], "state=fialed is not one of .*did you mean failed"),
        (["state="], "state= has no value"),
        (["date=yesterday"], "date=yesterday should be a day, a month or a year, as 2026-11-27, or a span of them"),
        (["amp.levle=o2"], "no run has a key amp.levle; did you mean amp.level"),
        (["stat=failed"], r"no run has a key stat; did you mean state\? \(or state, name, date\)"),
        (["wise-moth", "state=failed"], "state=failed is for a listing, and 20260203-050000-wise-moth is a run"),
    ],
)
def test_mistakes(runs: None, words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ls.main(words)


def test_a_plan_that_is_damaged_matches_nothing(root: Path, shown: Shown) -> None:
    (make(root) / "plan.json").write_text('{"settings": [1], "swept": 3, "words": {"a": 1}, "cluster": "x"')
    assert shown("name=x") == ["no run has these values"]
    (make(root, SWEEP) / "plan.json").write_text('{"name": "x", "swept": [3, ["lr"]]}')
    assert shown("name=x")[1].startswith(SWEEP)
