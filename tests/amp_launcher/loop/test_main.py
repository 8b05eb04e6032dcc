"""How a trainer's process ends: its exit code, its message, and which rank prints it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from amp_launcher.loop.main import main
from amp_launcher.loop.run import Run
from amp_launcher.recipes.data import DataError
from amp_launcher.typed import SettingsError
from amp_launcher.world.world import PlacementError, SettingsErrorOfAll


@pytest.fixture(params=["torch", "tensorflow"])
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of this process, which is the second of two by the framework's own variable."""
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    values = {"torch": ("RANK", "1"), "tensorflow": ("TF_CONFIG", json.dumps(config))}
    monkeypatch.setenv(*values[request.param])
    return request.param


@pytest.mark.parametrize(
    ("error", "code", "of_all"),
    [
        (PlacementError("three joined"), 1, True),
        (SettingsErrorOfAll("no file"), 2, True),
        (PlacementError("worker 0 is not there", of_all=False), 1, False),
        (SettingsError("no GPU"), 2, False),
    ],
)
def test_an_error_of_all_ranks_is_printed_by_the_first_alone_and_any_other_by_its_own(
    framework: str,
    error: Exception,
    code: int,
    of_all: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise error

    kind: Any = SimpleNamespace(framework=framework, join=fail)
    assert main(kind, "mnist", fail, []) == code
    assert capsys.readouterr().err == ("" if of_all else f"mnist: {error}\n")
    for name in ("RANK", "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert main(kind, "mnist", fail, []) == code
    assert capsys.readouterr().err == f"mnist: {error}\n"


@pytest.mark.parametrize(("rank", "of_all", "left"), [("0", True, True), ("1", True, False), ("1", False, True)])
def test_a_wrong_placement_is_the_reason_of_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: str, of_all: bool, left: bool
) -> None:
    def join(*_: Any) -> NoReturn:
        text = "rank 0: torch sees no CUDA GPU here\nrank 1: the same\nrank  host  device"
        raise PlacementError(text, of_all=of_all)

    (tmp_path / "attempts" / "1").mkdir(parents=True)
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    monkeypatch.setenv("RANK", rank)
    kind: Any = SimpleNamespace(framework="torch", join=join)
    assert main(kind, "mnist", join, [f"run={tmp_path}"]) == 1
    failed = tmp_path / "attempts" / "1" / "failed.json"
    assert failed.exists() == left
    if left:
        reason = json.loads(failed.read_text())["reason"]
        assert reason == "on rank 1, " * (rank == "1") + "rank 0: torch sees no CUDA GPU here"


ENDS = """
import atexit, sys, threading, time, types
from amp_launcher.loop.main import start
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
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment}
    command = [sys.executable, "-c", ENDS, *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert (ended.returncode, ended.stdout) == (1, "cleaned up\n" + "finalized\n" * finalized)
    assert "RuntimeError: no GPU" in ended.stderr
    assert [(tmp_path / name).read_text() for name in ("text", "binary")] == ["kept", "kept"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("shard 7 is broken"), "ValueError: shard 7 is broken"),
        (DataError("shard 7 is broken"), "shard 7 is broken"),
    ],
)
def test_a_rank_that_fails_leaves_its_reason_since_the_first_may_be_killed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, reason: str
) -> None:
    monkeypatch.setenv("LAUNCHER_ATTEMPT", "1")
    (tmp_path / "attempts/1").mkdir(parents=True)
    reasons: list[str] = []
    run: Any = SimpleNamespace(folder=tmp_path, world=SimpleNamespace(rank=1), training=True)
    run.leave_failure = reasons.append
    run.leave_first_failure = lambda *failure: Run.leave_first_failure(run, *failure)

    def train(run: Any) -> NoReturn:
        raise error

    kind: Any = SimpleNamespace(framework="torch", join=lambda *_: run)
    assert main(kind, "mnist", train, []) == 1
    recorded = json.loads((tmp_path / "attempts/1/failed.json").read_text())["reason"]
    assert [recorded] == reasons == [f"on rank 1, {reason}"]
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "printed"), [(0, "step 1\nstep 2\n"), (1, "")])
def test_the_first_rank_alone_speaks_to_people(rank: int, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    run: Any = SimpleNamespace(world=SimpleNamespace(rank=rank))
    Run.say(run, "step 1", "step 2")
    Run.say(run)
    assert capsys.readouterr().out == printed
