"""`compare` as a person types it, once for real, with tiny arms."""

from __future__ import annotations

import re

import pytest

from launcher import units
from launcher.__main__ import main
from launcher.compare import planning
from launcher.runs import selection, store
from launcher.ssh import probe_client

from .. import warm
from ..run_folders import launcher, lines

WORDS = [
    "recipe=simplenet",
    "train.width=64",
    "compare.steps=4",
    "compare.cool_down=0",
    "telemetry.every=0",
    "env.OMP_NUM_THREADS=1",
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A comparison of two levels of the real trainer in two rounds, and what it printed."""
    folder = tmp_path_factory.mktemp("compare")
    root = folder / "runs"
    words = ["amp=o0,o2", "batch=8", *WORDS, "compare.rounds=2", f"python={warm.python()}", f"run_root={root}"]
    done = launcher("compare", *words, state_home=folder / "state")
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = selection.run_names(str(root))
    return done, root / name


def test_it_says_what_each_arm_gains_and_costs(measured):
    done, folder = measured
    assert f"{folder.name}  compare-simplenet (amp=o0) (amp=o2)" in done.stdout
    assert "too few to tell" in done.stdout
    assert "loss gap" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("amp=o")]
    assert [row[-2:] for row in rows if row[-1] == "done" and len(row) > 6] == [["proved", "done"]] * 2


def test_arms_begin_alike_and_go_on_from_their_own_state(measured):
    _, folder = measured
    assert (folder / "blocks").read_text().split("\n")[:4] == ["00 85", "01 85", "01 0", "00 0"]
    steps = [
        [row for row in lines(folder / "arms" / arm / "metrics.jsonl") if "event" not in row] for arm in ("00", "01")
    ]
    assert [row["step"] for row in steps[0]] == [row["step"] for row in steps[1]] == list(range(1, 9))
    assert steps[0][0]["loss"] == pytest.approx(steps[1][0]["loss"], rel=0.01)
    digests = [store.read_json(folder / "arms" / arm / "result.json")["digests"] for arm in ("00", "01")]
    assert digests[0] == digests[1]


def test_it_is_one_run_to_every_other_verb(measured, capsys):
    folder = measured[1]

    def printed(*words, code=0):
        assert main([*words, f"run_root={folder.parent}"]) == code
        return "".join(capsys.readouterr())

    (row,) = [line.split() for line in printed("ls").splitlines() if line.startswith(folder.name)]
    assert row[1] == "done" and "proved" in row
    compared = store.read_json(folder / "result.json")["comparison"]
    assert compared["control"] == "amp=o0"
    rate = units.number(compared["arms"][1]["samples_per_second"])
    assert re.search(rf"^arm +amp=o2  done, {rate} samples/s$", printed("ls", folder.name), re.M), (
        "as the report has it"
    )
    report = printed("report", folder.name, folder.name[:15])
    assert "COMPARISON" in report, "a comparison named twice is still one"
    command = store.read_json(folder / "provenance.json")["command"]
    assert command[:5] == ["python", "-m", "launcher", "compare", "amp=o0,o2"], "what repeats it"
    assert "no more rounds than it began with" in printed("resume", folder.name, code=2)
    assert printed("watch", folder.name).count("done") == report.count("done") + 3


def test_its_plan_can_be_looked_at_first(tmp_path, capsys, monkeypatch):
    made = []

    def probe_each(specs, *, make):
        made.append(make)
        return probe_client.probe_each(specs, make=make)

    monkeypatch.setattr(planning, "probe_each", probe_each)
    assert main(["compare", "amp=o0,o2", "--plan", f"run_root={tmp_path / 'runs'}"]) == 0
    shown = capsys.readouterr().out
    assert "a comparison of 2 arms: 5 rounds of 2 blocks, 50 steps each, 2 s apart" in shown
    assert "00 01 01 00 00 01 01 00 00 01" in shown
    assert not (tmp_path / "runs").exists()
    assert made == [False], "no environment is made for it"
