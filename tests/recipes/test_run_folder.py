"""The trainer's part of a run folder."""

from __future__ import annotations

import json
import math
import stat

import pytest

from recipes.run_folder import RunFolder, write_json


def test_a_folder_of_our_making_is_its_owners_alone(tmp_path):
    folder = RunFolder(path=tmp_path / "run", attempt=1)
    folder.create()
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_the_marker_names_the_checkpoint_and_takes_the_request_back(tmp_path):
    folder = RunFolder(path=tmp_path, attempt=3)
    folder.stop.touch()
    folder.mark_stopped(tmp_path / "checkpoints" / "step-000000007", 7)
    marker = json.loads((tmp_path / "attempts" / "3" / "stopped.json").read_text())
    assert (marker["schema"], marker["checkpoint"], marker["step"]) == (1, "checkpoints/step-000000007", 7)
    assert not folder.stop.exists()


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"value": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"value": math.nan})
    assert json.loads(path.read_text()) == {"value": 1}
