"""Records of their steps by Trainer and Lightning, as the wrapper of a script reads them."""

from __future__ import annotations

import os
import sys
import time

import pytest

from amp_launcher.around import library_records

STATE = '{"global_step": 4, "log_history": [{"step": 4, "loss": 1.0}]}'


@pytest.fixture(autouse=True)
def imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", object())
    monkeypatch.setitem(sys.modules, "lightning", object())


def test_records_from_before_the_script_began_and_damaged_ones_are_not_read(tmp_path):
    old = tmp_path / "a" / "trainer_state.json"
    old.parent.mkdir()
    old.write_text(STATE)
    os.utime(old, (100, 100))
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4, "log_hist')
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    assert library_records.read([tmp_path], since=1000) is None
    assert library_records.read([tmp_path], since=50).steps == {4: {"loss": 1.0}}


@pytest.mark.parametrize("ahead", [-0.5, 3600.0], ids=["behind", "ahead"])
def test_times_are_this_hosts_where_the_clock_of_the_file_system_differs(tmp_path, monkeypatch, ahead):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - ahead)
    began = time.time()
    (tmp_path / "trainer_state.json").write_text(STATE)
    written = time.time()
    step, saved = library_records.read([tmp_path], since=began - 0.1).saved
    assert (step, began - 0.1 <= saved <= written + 0.1) == (4, True)
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]


def test_without_the_library_no_records_are_searched(monkeypatch, tmp_path):
    (tmp_path / "trainer_state.json").write_text(STATE)
    monkeypatch.setattr(library_records, "_files", lambda folders: pytest.fail("searched"))
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert library_records.read([tmp_path], since=0) is None


def test_folders_named_in_arguments_are_searched(tmp_path):
    for name in ("out", "logs", "kept", "board"):
        (tmp_path / name).mkdir()
    words = ["--output_dir=out", "log.dir=logs", "--lr", "0.1", "x" * 5000, ""]
    environ = {"LAUNCHER_CHECKPOINT_DIR": str(tmp_path / "kept"), "TENSORBOARD_LOGGING_DIR": "board"}
    folders = library_records.folders_of(tmp_path, words, environ)
    assert folders == [tmp_path, *(tmp_path / name for name in ("out", "logs", "kept", "board"))]


@pytest.mark.parametrize(
    "text",
    [
        '{"global_step": Infinity, "log_history": []}',
        f'{{"global_step": 1, "log_history": [{{"step": 1, "loss": 1{"0" * 400}}}]}}',
        "[" * 100_000,
        '{"global_step": 1, "log_history": 7}',
    ],
    ids=["infinite", "too large for a float", "deep", "no list"],
)
def test_a_record_of_another_program_is_ignored(text, tmp_path):
    (tmp_path / "trainer_state.json").write_text(text)
    assert library_records.read([tmp_path], 0) is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["loss", "accuracy", "lr"], {}),
        (["val_head1_loss", "val_loss", "val_head2_acc"], {"loss": "val_loss", "accuracy": "val_head2_acc"}),
        (["eval_loss", "eval_accuracy", "eval_runtime"], {"loss": "eval_loss", "accuracy": "eval_accuracy"}),
        (["validation/acc", "value_loss"], {"accuracy": "validation/acc"}),
    ],
)
def test_measures_on_held_out_samples_are_known_by_their_names(names, expected):
    assert library_records.held_out_names(names) == expected
