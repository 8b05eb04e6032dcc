"""What a framework reads of the environment as it is imported is what the script sets before it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from amp_launcher.around.early_environment import as_in_script, set_before

WRAPPER = "amp_launcher.tensorflow.script"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('import os\nos.environ["A"] = "1"\nimport keras', {"A": "1"}),
        ('from os import environ\nenviron["A"] = "1"\nfrom keras_hub import models', {"A": "1"}),
        ('import os\nos.environ.setdefault("A", "1")\nos.environ.setdefault("HOME", "x")', {"A": "1"}),
        ('import os\nos.environ.update({"A": "1", **other}, B="2")', {"A": "1", "B": "2"}),
        ('import os\nimport tensorflow as tf\nos.environ["A"] = "1"', {}),
        (
            'import os\nos.environ["A"] = name\nsettings["B"] = "1"\nos.environ[name] = "1"\nos.environ.get("A", "1")',
            {},
        ),
        ('import os\nif os.name:\n    os.environ["A"] = "1"', {}),
        ("print 1", {}),
    ],
)
def test_what_a_text_sets_before_it_imports_the_framework_is_found(text: str, found: dict[str, str]) -> None:
    assert set_before(text, ["tensorflow", "keras"]) == found


@pytest.mark.parametrize(("level", "onednn"), [("o0", "0"), ("o1", "1")])
def test_a_framework_is_imported_in_the_environment_of_the_script(
    level: str, onednn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text('import os\nos.environ["LEGACY"] = "1"\nos.environ["ONEDNN"] = "0"\n')
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", WRAPPER, f"amp={level}", f"script={tmp_path}/train.py"])
    monkeypatch.setenv("ONEDNN", "1")
    before = dict(os.environ)
    with as_in_script(WRAPPER, ["tensorflow"], own=["ONEDNN"]):
        os.environ.setdefault("QUIET", "3")
        assert (os.environ["LEGACY"], os.environ["ONEDNN"]) == ("1", onednn)
    assert dict(os.environ) == before


def test_without_a_script_the_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIET", raising=False)
    with as_in_script(WRAPPER, ["tensorflow"]):
        monkeypatch.setenv("QUIET", "3")
    assert os.environ["QUIET"] == "3"
