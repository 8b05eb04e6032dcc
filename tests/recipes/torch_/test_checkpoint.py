"""Checkpoints: whole or not there."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.torch_.devices import World
from recipes.torch_.state import FILE, read, write
from recipes.trainer import checkpoint
from recipes.trainer.world import SettingsErrorOfAll


def save(folder: Path, step: int, keep: int = 2) -> Path:
    state = {"weights": torch.full((1000,), float(step)), "nested": {"step": step, "list": [1, None, "a"]}}
    return save_state(folder, step, state, keep)


def save_state(folder: Path, step: int, state: Any, keep: int, check: Callable[[], None] = lambda: None) -> Path:
    return checkpoint.save(folder, step, FILE, lambda file: write(file, state), {"settings": {"batch": 1}}, keep, check)


def newest(folder: Path) -> tuple[int | None, list[str]]:
    warnings: list[str] = []
    found = checkpoint.newest(folder, warnings.append)
    return (found.step if found else None), warnings


def test_a_state_comes_back_as_it_was_saved(tmp_path):
    save(tmp_path, 3)
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert found is not None
    state = read(found.state)
    assert torch.equal(state["weights"], torch.full((1000,), 3.0))
    assert state["nested"] == {"step": 3, "list": [1, None, "a"]}
    assert found.manifest["settings"] == {"batch": 1}


def test_the_newest_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        save(tmp_path, step)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-000000100", "step-000001000"]


def test_a_save_that_fails_leaves_nothing_and_the_older_ones(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(AttributeError):
        save_state(tmp_path, 2, {"cannot be pickled": lambda: None}, 2)

    def refuse() -> None:
        raise PermissionError("taken over")

    with pytest.raises(PermissionError, match="taken over"):
        save_state(tmp_path, 3, {}, 1, refuse)
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000001"]


def test_a_save_that_the_file_system_refuses_says_why_and_leaves_nothing(tmp_path):
    save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000001"]


def test_a_checkpoint_makes_no_folder_but_its_own(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "deleted" / "checkpoints", 1)
    assert not (tmp_path / "deleted").exists()


def test_saving_a_step_again_replaces_it(tmp_path):
    (save(tmp_path, 5) / "state.pt").write_bytes(b"broken")
    save(tmp_path, 5)
    assert newest(tmp_path) == (5, [])


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path):
    assert newest(tmp_path / "none") == (None, [])
    assert newest(tmp_path) == (None, [])


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (path / "state.pt").write_bytes(content)


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "one bit": flip_a_bit,
    "half a state": lambda path: os.truncate(path / "state.pt", 100),
    "no state": lambda path: (path / "state.pt").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "half a manifest": lambda path: os.truncate(path / "manifest.json", 20),
    "a manifest of something else": lambda path: (path / "manifest.json").write_text("[]"),
    "another step's manifest": lambda path: (path / "manifest.json").write_text(
        json.dumps({**json.loads((path / "manifest.json").read_text()), "step": 1})
    ),
}


@pytest.mark.parametrize("how", BREAKAGES)
def test_a_broken_checkpoint_is_passed_over_with_a_warning_that_names_it(tmp_path, how):
    save(tmp_path, 5)
    BREAKAGES[how](save(tmp_path, 10))
    step, warnings = newest(tmp_path)
    assert step == 5
    assert len(warnings) == 1
    assert "step-000000010" in warnings[0]


def test_broken_ones_ahead_do_not_push_out_good_ones(tmp_path):
    save(tmp_path, 5)
    for step in (20, 30):
        flip_a_bit(save(tmp_path, step, keep=9))
    save(tmp_path, 10)
    assert newest(tmp_path)[0] == 10
    assert (tmp_path / "step-000000005").exists()


def test_leftovers_of_a_killed_attempt_are_cleared(tmp_path):
    save(tmp_path, 5)
    (tmp_path / ".step-000000010.123").mkdir()
    checkpoint.clear_leftovers(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000005"]


def test_a_state_with_code_in_it_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    save_state(tmp_path, 1, {"evil": Evil()}, 1)
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert found is not None
    with pytest.raises(Exception, match="Weights only"):
        read(found.state)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_schema_is_refused_on_every_rank(tmp_path):
    manifest = save(tmp_path, 5) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 2}))
    world = World(rank=0, size=1, device=torch.device("cpu"))
    with pytest.raises(
        SettingsErrorOfAll, match=r"is of schema 2, and this version reads 3; `python -m launcher resume`"
    ):
        checkpoint.for_resuming(tmp_path, world)


@pytest.mark.parametrize(
    "changed", [{"schema": None}, {"state": []}, {"state": {}}, {"shards": "four"}, {"shards": None}]
)
def test_a_manifest_with_a_value_of_another_type_is_passed_over(tmp_path, changed):
    path = save(tmp_path, 5)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changed}))
    step, warnings = newest(tmp_path)
    assert step is None
    assert "its manifest does not describe its files" in warnings[0]


@pytest.mark.parametrize("files", [{"state.pt": 1}, {"../state.pt": {}}, {}, [], None])
def test_a_manifest_that_names_no_files_of_its_own_is_passed_over(tmp_path, files):
    path = save(tmp_path, 5)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "files": files}))
    step, warnings = newest(tmp_path)
    assert step is None
    assert "its manifest does not describe its files" in warnings[0]
