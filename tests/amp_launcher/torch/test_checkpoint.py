"""Checkpoints: complete, or not there."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_launcher.loop import checkpoint
from amp_launcher.torch.devices import World
from amp_launcher.torch.state import FILE, read, write
from amp_launcher.world.world import SettingsErrorOfAll

STATE = "state.pt"


def save(folder: Path, step: int, keep: int = 2) -> Path:
    state = {"weights": torch.full((1000,), float(step)), "nested": {"step": step, "list": [1, None, "a"]}}
    return save_state(folder, step, state, keep)


def save_state(folder: Path, step: int, state: Any, keep: int, check: Callable[[], None] = lambda: None) -> Path:
    return checkpoint.save(folder, step, FILE, lambda file: write(file, state), {"settings": {"batch": 1}}, keep, check)


def newest(folder: Path) -> tuple[int | None, list[str]]:
    warnings: list[str] = []
    latest = checkpoint.newest(folder, warnings.append)
    return (latest.step if latest else None), warnings


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_state_is_read_as_it_was_saved(tmp_path):
    save(tmp_path, 3)
    latest = checkpoint.newest(tmp_path, pytest.fail)
    state = read(latest.state)
    assert torch.equal(state["weights"], torch.full((1000,), 3.0))
    assert state["nested"] == {"step": 3, "list": [1, None, "a"]}
    assert latest.manifest["settings"] == {"batch": 1}


def test_the_newest_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000000100", "step-000001000"]


def test_a_save_that_fails_leaves_nothing_and_the_older_ones(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(AttributeError):
        save_state(tmp_path, 2, {"cannot be pickled": lambda: None}, 2)

    def refuse() -> None:
        raise PermissionError("superseded")

    with pytest.raises(PermissionError, match="superseded"):
        save_state(tmp_path, 3, {}, 1, refuse)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["step-000000001"]


def test_a_checkpoint_makes_no_folder_but_its_own(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "deleted" / "checkpoints", 1)
    assert not (tmp_path / "deleted").exists()


def test_saving_a_step_again_replaces_it(tmp_path):
    (save(tmp_path, 5) / STATE).write_bytes(b"broken")
    save(tmp_path, 5)
    assert newest(tmp_path) == (5, [])


def test_no_folder_and_an_empty_one_hold_no_checkpoint(tmp_path):
    assert newest(tmp_path / "none") == newest(tmp_path) == (None, [])


def flip_a_bit(path: Path) -> None:
    content = bytearray((path / STATE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / STATE).write_bytes(content)


def changed(**values: Any) -> Callable[[Path], object]:
    """Other values in the manifest."""

    def change(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps({**manifest, **values}))

    return change


UNDESCRIBED = "its manifest does not describe its files"
BREAKAGES: list[tuple[Callable[[Path], object], str]] = [
    (flip_a_bit, "state.pt is not what was saved"),
    (lambda path: os.truncate(path / STATE, 100), "state.pt is not what was saved"),
    (lambda path: (path / STATE).unlink(), "No such file"),
    (lambda path: (path / "manifest.json").unlink(), "No such file"),
    (lambda path: os.truncate(path / "manifest.json", 20), "is skipped: "),
    (lambda path: (path / "manifest.json").write_text("[]"), UNDESCRIBED),
    (changed(step=1), "its manifest is of step 1"),
    *((changed(schema=value), UNDESCRIBED) for value in (None, "3")),
    *((changed(state=value), UNDESCRIBED) for value in ([], {})),
    *((changed(shards=value), UNDESCRIBED) for value in ("four", None)),
    *((changed(files=value), UNDESCRIBED) for value in ({STATE: 1}, {"../state.pt": {}}, {}, [], None)),
]


@pytest.mark.parametrize(("spoil", "reason"), BREAKAGES)
def test_a_broken_checkpoint_is_skipped_with_a_warning_that_names_it(tmp_path, spoil, reason):
    save(tmp_path, 5)
    spoil(save(tmp_path, 10))
    step, (warning,) = newest(tmp_path)
    assert step == 5
    assert "step-000000010 is skipped" in warning and reason in warning


def test_broken_newer_ones_do_not_have_good_ones_deleted(tmp_path):
    save(tmp_path, 5)
    for step in (20, 30):
        flip_a_bit(save(tmp_path, step, keep=9))
    save(tmp_path, 10)
    assert newest(tmp_path)[0] == 10
    assert (tmp_path / "step-000000005").exists()


def test_leftovers_of_a_killed_attempt_are_deleted(tmp_path):
    save(tmp_path, 5)
    (tmp_path / ".step-000000010.123").mkdir()
    (tmp_path / ".nfs0001").touch()  # which another host has open, and no folder
    checkpoint.clear_leftovers(tmp_path)
    assert names(tmp_path) == [".nfs0001", "step-000000005"]


def test_a_state_with_code_in_it_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    save_state(tmp_path, 1, {"evil": Evil()}, 1)
    with pytest.raises(Exception, match="Weights only"):
        read(checkpoint.newest(tmp_path, pytest.fail).state)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_schema_is_refused_on_every_rank(tmp_path):
    changed(schema=2)(save(tmp_path, 5))
    world = World(rank=0, size=1, device=torch.device("cpu"))
    message = r"is of schema 2, and this version reads 3; `python -m launcher resume`"
    with pytest.raises(SettingsErrorOfAll, match=message):
        checkpoint.for_resuming(tmp_path, world)
