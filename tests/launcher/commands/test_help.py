"""`run --help` lists every key that can be set."""

from __future__ import annotations

import re

import pytest

from launcher.__main__ import main
from launcher.commands.help import keys
from launcher.config.schema import GROUPS, known_keys


def test_every_key_has_a_line():
    listed = set(re.findall(r"^  ([a-z0-9_]+(?:\.[a-z0-9_]+)*) ", keys([]), re.MULTILINE))
    chosen_by_name = {f"{group}.kind" for group in GROUPS} | {"loss_scale.preset"}
    assert set(known_keys()) - listed <= chosen_by_name
    assert {"container.network", "container.shm", "container.limits", "cluster.login", "telemetry.every"} <= listed
    assert re.search(r"^  profile\.reports +list of all\|.*\|expert_systems dlprof: ", keys([]), re.MULTILINE)


def test_help_does_not_split_a_command_at_its_hyphen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["export", "--help"]) == 0
    assert "'amp-launcher[export]'" in capsys.readouterr().out
