"""`python -m benchmarks scripts`, with a repository made here and nothing installed."""

from __future__ import annotations

import difflib
import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import scripts
from benchmarks.scripts import environments, page, running, table
from benchmarks.scripts.running import Left
from tests.launcher import warm

TRAIN = """
import torch

torch.manual_seed(int(open("seed").read()))
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(1000000):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
torch.save(net.state_dict(), "net.pt")
"""


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str]:
    place = tmp_path / "upstream"
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=place, check=True)
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=place, check=True, capture_output=True, text=True)
    return place.as_uri(), told.stdout.strip()


@pytest.mark.slow
def test_a_row_is_compared_and_one_that_is_missing_is_named(
    repository: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "python", lambda row, folder: warm.python())  # of the runs; alone it is plain
    address, commit = repository
    both = {"about": "a line", "repository": address, "script": "train.py", "losses": r"loss ([\d.e-]+)"}
    rows = {
        "gone": table.Row(name="gone", commit="0" * 40, **both),
        "here": table.Row(
            name="here",
            commit=commit,
            inputs="open('seed', 'w').write('1')",
            edits=[("train.py", "1000000", "30")],
            weights="*.pt",
            **both,
        ),
    }
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    assert scripts.tried(list(rows.values()), rows, tmp_path / "dir", page, record) == 1
    kept = json.loads(record.read_text())
    assert kept["gone"]["now"]["failed"].startswith("git fetch: ") and "first" not in kept["gone"]
    modes = kept["here"]["first"]["modes"]
    assert [(mode["same"], mode["verdict"]) for mode in modes.values()] == [(True, "proved")] * 2, modes
    assert modes["o0"]["compared"] == "30 losses, 1 of 1 files, 1 of weights"
    assert "| here | " in page.read_text() and "| gone | | not run |" in page.read_text()


ALONE = {"code": 0, "losses": ["1", "2"], "files": {"net.pt": "a", "log": "b"}}


@pytest.mark.parametrize(
    ("again", "ours", "expected"),
    [
        ({}, {}, []),
        ({}, {"code": 1}, ["exit code 1, alone 0"]),
        ({}, {"losses": ["1", "3"]}, ["loss 2 of 2: 3, alone 2"]),
        ({}, {"losses": ["1"]}, ["1 losses, alone 2"]),
        ({"losses": ["1", "4"]}, {"losses": ["1", "3"]}, []),
        ({}, {"files": {"net.pt": "c"}}, ["net.pt differs", "log is missing"]),
        ({"files": {"net.pt": "a", "log": "d"}}, {"files": {"net.pt": "a", "log": "e"}}, []),
        ({}, {"files": {**ALONE["files"], "more": "f"}}, ["more only here"]),
        (None, {"losses": ["5", "nan"]}, ["a loss of nan"]),
        (None, {"losses": ["5", "6"], "files": {}}, []),
    ],
)
def test_what_differs_is_named(again, ours, expected) -> None:
    def left(more) -> Left:
        return Left(seconds=1.0, **{**ALONE, **more})

    second = None if again is None else left(again)
    assert running.differences(left({}), second, left(ours)) == expected


@pytest.mark.parametrize(
    ("short", "resumed", "expected"),
    [
        ({}, {}, []),
        ({}, {"losses": ["3"]}, ["loss 1 of 1 after the resume: 3, without it 2"]),
        ({}, {"losses": ["1", "2"]}, ["2 losses after the resume, 2 in the whole run"]),
        ({}, {"losses": []}, ["0 losses after the resume, 2 in the whole run"]),
        ({"code": 1}, {"said": "no"}, ["cut short it ends with exit code 1, resumed with 0: no"]),
        ({}, {"verdict": "unknown"}, ["the verdict is proved, cut short proved, resumed unknown"]),
    ],
)
def test_what_a_resume_changes_is_named(short, resumed, expected) -> None:
    whole = Left(seconds=1.0, verdict="proved", **ALONE)
    parts = [Left(seconds=1.0, **{**ALONE, "verdict": "proved", "losses": ["2"], **more}) for more in (short, resumed)]
    assert running.resumed_differently(whole, *parts) == expected


def test_nanogpt_needs_fewer_than_fifteen_changed_lines() -> None:
    *edits, batches, printed = table.read(table.ROWS)["nanogpt-four-calls"].edits
    assert "get_batch" in batches[2] and "lossf" in printed[2]  # these two are the comparison's
    lines = [line for _, old, new in edits for line in difflib.ndiff(old.splitlines(), new.splitlines())]
    assert sum(line[:2] in ("+ ", "- ") for line in lines) == 13


@pytest.mark.parametrize(
    ("verdict", "same", "code", "cell"),
    [
        ("proved", True, 0, "identical, proved"),
        ("contradicted", False, 1, "ended, rightly contradicted"),
        ("contradicted", True, 0, "identical, rightly contradicted"),
        ("contradicted", False, 2, "DIFFERS, rightly contradicted"),
        ("unknown", True, 0, "identical, unknown"),
        ("", False, 2, "DIFFERS, refused"),
    ],
)
def test_only_the_verdict_that_a_row_calls_right_is_right(verdict: str, same: bool, code: int, cell: str) -> None:
    row = table.Row(
        name="a",
        about="a",
        script="a.py",
        losses="(a)",
        repository="b",
        right={"o0": ("contradicted", "it is float64")},
    )
    found = {"same": same, "code": code, "verdict": verdict, "why": "", "said": "error: no" * (code == 2), "ratio": 1.0}
    modes = {
        "o0": {**found, "differences": [], "compared": "1 losses"},
        "o1": {**found, "differences": [], "compared": "no losses, which differ alone, 0 of 2 files"},
    }
    modes["o1"] |= {"verdict": "proved", "same": True}
    result = {"version": "1", "torch": "", "seconds": 1.0, "modes": modes, "date": "", "machine": ""}
    text = page.text({"a": {"now": result, "first": result}}, {"a": row})
    assert f"| {cell} | ends as alone, proved |" in text  # of which nothing was compared but how it ends
    assert ("it is float64" in text) == ("rightly" in cell)
    assert page.good(row, result) == (verdict == "contradicted" and code != 2)


def test_a_name_that_is_no_row_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        scripts.main(["--only", "nanogtp"])
    assert ended.value.code == 2
    assert "nanogtp is not one of nanogpt, " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("x: {about: a, script: a, losses: a, package: b, requirements: [b==1]}", "losses needs one group"),
        ("x: {about: a, script: a, losses: (a), package: b, requirements: [b]}", "b is not pinned"),
        (
            "x: {about: a, script: a, losses: (a), package: b, requirements: [b==1], modes: [o0]}",
            "modes needs halves, the arguments of a run that is cut short",
        ),
        ("x: {about: a, script: a, losses: (a), repository: b}", "the 40 digits of its commit"),
        ("x: {about: a, script: a, losses: (a), colour: b}", "colour"),
        (
            "x: {about: a, script: a, losses: (a), package: b, requirements: [b==1], right: {o1: [proved, a]}}",
            "right needs a mode, then one of contradicted, unknown, refused",
        ),
    ],
)
def test_a_row_that_is_wrong_is_refused(given: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "scripts.yaml"
    file.write_text(given)
    with pytest.raises(ValueError, match=expected):
        table.read(file)
