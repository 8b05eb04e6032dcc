"""Reports that the ranks of a script leave for the first one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amp_launcher.arguments import Arguments
from amp_launcher.around import rank_reports
from amp_launcher.around.script_attempt import ScriptAttempt
from amp_launcher.settings import Settings


def test_a_report_of_an_earlier_start_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun may start all ranks again, and a person may start a job again in the same folder."""
    monkeypatch.setenv("RANK", "1")
    rank_reports.path_of(tmp_path, 1).write_text('{"reports": [], "failure": "on rank 1, no data", "observed": {}}')
    wrapper: Any = SimpleNamespace(
        detector=lambda level: None, device=SimpleNamespace(peak_memory=int), tell_early=lambda early: None
    )
    started: Any = SimpleNamespace(chosen=Arguments(settings=Settings(recipe="script"), run=tmp_path))
    ScriptAttempt(started, wrapper, began=0.0)
    assert rank_reports.collect(tmp_path, size=2, patience=0.0) == rank_reports.Reports(trained_nothing=False)
