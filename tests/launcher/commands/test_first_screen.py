"""`python -m launcher` without a word: it starts nothing and shows the way."""

from __future__ import annotations

import os

from launcher.__main__ import main

from ..run_folders import finished, make


def test_it_starts_nothing_and_shows_the_commands_to_go_on_with(root, capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert f"no runs in {root}" in shown and "python -m launcher train.py amp=o1" in shown
    assert not os.path.isdir(root) or os.listdir(root) == []


def test_it_has_the_newest_runs_and_each_that_has_not_ended(root, capsys):
    waiting = make(root, "20200101-000000-old-runner")
    for day in range(10, 18):
        finished(root, f"202101{day}-000000-some-run")
    assert main([]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("20")]
    assert shown == [*(f"202101{day}-000000-some-run" for day in range(17, 12, -1)), waiting.name]
