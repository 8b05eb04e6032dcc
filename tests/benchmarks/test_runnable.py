"""Benchmarks run by hand: here, that they can be imported, and that the one of scripts runs."""

from __future__ import annotations

import importlib

import pytest

from benchmarks import script_steps
from benchmarks.__main__ import BENCHMARKS

OTHER_FRAMEWORKS = {"steps_tensorflow", "steps_paddle"}
"""Importing these takes many seconds."""


@pytest.mark.parametrize(
    "name", [name for name, place in BENCHMARKS.items() if place.split(":")[0] not in OTHER_FRAMEWORKS]
)
def test_a_benchmark_can_be_imported(name):
    module, function, *_ = BENCHMARKS[name].split(":")
    assert callable(getattr(importlib.import_module(f"benchmarks.{module}"), function))


def test_the_benchmark_of_scripts_counts_steps(tmp_path):
    (tmp_path / "train.py").write_text("")
    assert script_steps._counted(tmp_path / "1", tmp_path / "train.py", script_steps._step()) > 0
