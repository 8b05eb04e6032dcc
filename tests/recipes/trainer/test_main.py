"""What a trainer's process says as it ends, and whether it is the one to say it."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest

from recipes.trainer.main import main
from recipes.trainer.world import PlacementError, SettingsErrorOfAll
from recipes.typed import SettingsError


def ended(framework: str, error: Exception) -> int:
    """The exit code of a process that could not become one of its job, for this reason."""

    def fail(chosen: Any) -> NoReturn:
        raise error

    return main("mnist", framework, "recipes.mnist", [], fail, fail, fail)


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
