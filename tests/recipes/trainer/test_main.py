"""What a trainer's process says as it ends, and whether it is the one to say it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from recipes.trainer.main import main
from recipes.trainer.run import Run
from recipes.trainer.world import PlacementError, SettingsErrorOfAll
from recipes.typed import SettingsError


def ended(framework: str, error: Exception) -> int:
    """The exit code of a process that could not become one of its job, for this reason."""

    def fail(*_: Any) -> NoReturn:
        raise error

    kind: Any = SimpleNamespace(framework=framework, join=fail)
    return main(kind, "mnist", fail, [])


@pytest.fixture(params=["torch", "tensorflow"])
def second(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The framework, in whose own way this process is the second of two."""
    if request.param == "torch":
        monkeypatch.setenv("RANK", "1")
    else:
        cluster = {"worker": ["a:1", "b:2"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    return request.param


@pytest.mark.parametrize(("error", "code"), [(PlacementError("three came"), 1), (SettingsErrorOfAll("no file"), 2)])
def test_what_every_process_knows_the_first_one_alone_says(
    second: str, error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(second, error) == code
    assert capsys.readouterr().err == ""
    monkeypatch.delenv("RANK" if second == "torch" else "TF_CONFIG")
    assert ended(second, error) == code
    assert capsys.readouterr().err == f"mnist: {error}\n"


@pytest.mark.parametrize(
    ("error", "code"), [(PlacementError("worker 0 is not there", of_all=False), 1), (SettingsError("no GPU"), 2)]
)
def test_what_only_one_process_knows_it_says_itself(
    second: str, error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(second, error) == code
    assert capsys.readouterr().err == f"mnist: {error}\n"


ENDS = """
import atexit, sys, threading, time, types
from recipes.trainer.main import start
class Loaded:
    def __del__(self):
        print("finalized")
loaded = Loaded()
atexit.register(print, "cleaned up")
text, binary = open("text", "w"), open("binary", "wb")
def upload():
    time.sleep(0.5)
    text.write("kept")
    binary.write(b"kept")
def fail(*_):
    threading.Thread(target=upload).start()
    raise RuntimeError("no GPU")
start(types.SimpleNamespace(framework=sys.argv.pop(1), join=fail), "mnist", fail)
"""


@pytest.mark.parametrize(
    ("words", "environment", "finalized"),
    [
        (["torch"], {}, False),
        (["torch", "profile=nsys"], {}, True),
        (["torch", "profile=nsys"], {"RANK": "0"}, False),
        (["tensorflow", "profile=ncu"], {}, True),
        (["tensorflow", "profile=framework"], {}, False),
        (["tensorflow"], {"TF_CONFIG": "{}"}, True),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_process_keeps_what_it_wrote_and_is_finalized_only_where_it_must_be(
    words: list[str], environment: dict[str, str], finalized: bool, tmp_path: Path
) -> None:
    root = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, "-c", ENDS, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, **environment},
    )
    assert (ended.returncode, ended.stdout) == (1, "cleaned up\n" + "finalized\n" * finalized)
    assert "RuntimeError: no GPU" in ended.stderr
    assert [(tmp_path / name).read_text() for name in ("text", "binary")] == ["kept", "kept"]


class Second:
    """What of a run on the second rank is used as it fails."""

    leave_first_failure = Run.leave_first_failure

    def __init__(self, folder: Path) -> None:
        self._chosen, self.world = SimpleNamespace(run=folder), SimpleNamespace(rank=1)
        self.told = ""

    def leave_failure(self, reason: str) -> None:
        self.told = reason


def test_a_rank_that_fails_leaves_why_since_the_first_one_may_be_killed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    (tmp_path / "attempts/1").mkdir(parents=True)
    run: Any = Second(tmp_path)

    def train(run: Any) -> NoReturn:
        raise ValueError("shard 7 is broken")

    kind: Any = SimpleNamespace(framework="torch", join=lambda *_: run)
    assert main(kind, "mnist", train, []) == 1
    left = json.loads((tmp_path / "attempts/1/failed.json").read_text())["reason"]
    assert left == run.told == "on rank 1, ValueError: shard 7 is broken"
    assert "ValueError: shard 7 is broken" in capsys.readouterr().err
