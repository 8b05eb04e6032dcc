"""What Trainer and Lightning record of their steps, and how it gets into the rows of a script's."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import textwrap
import time

import pytest

from recipes import metrics
from recipes.trainer import library_records
from tests.recipes.forking import Forks

TRAINER = """\
import sys
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)
    def forward(self, x=None, labels=None):
        out = self.net(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
words = dict(output_dir=sys.argv[1], logging_steps=2, max_steps=int(sys.argv[2]), save_steps=4, report_to=[])
words.update(use_cpu=True, eval_strategy="steps", eval_steps=6, disable_tqdm=True)
trainer = Trainer(Net(), TrainingArguments(**words), train_dataset=data, eval_dataset=data)
trainer.train(resume_from_checkpoint=sys.argv[3] if len(sys.argv) > 3 else None)
"""
LIGHTNING = """\
import sys
import lightning
import torch
from torch import nn
from lightning.pytorch.loggers import CSVLogger

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = (self.net(batch) ** 2).mean()
        self.log("train/loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val_acc", 0.5)
        self.log("val_loss", (self.net(batch) ** 2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
words = dict(max_epochs=int(sys.argv[1]), log_every_n_steps=2, accelerator="cpu", enable_progress_bar=False)
trainer = lightning.Trainer(logger=CSVLogger("."), **words)
trainer.fit(Net(), data, data, ckpt_path=sys.argv[2] if len(sys.argv) > 2 else None, weights_only=False)
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script under the wrapper, in a fork of a process that has imported its library: its result, its rows."""

    @contextlib.contextmanager
    def prepared(library, text):
        (tmp_path / "train.py").write_text(textwrap.dedent(text))
        forks = Forks("recipes.torch_.script", library)
        attempts = itertools.count(1)

        def start(*passed):
            folder, attempt = tmp_path / "run", str(next(attempts))
            (folder / "attempts" / attempt).mkdir(parents=True)
            words = ["amp=o0", f"script={tmp_path}/train.py", f"run={folder}", f"workdir={tmp_path}", "device=cpu"]
            words += ["require_proof=false", "--", *passed]
            done = forks.run("recipes.torch_.script", *words, LAUNCHER_ATTEMPT=attempt)
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads((folder / "result.json").read_text()), list(metrics.read(folder / "metrics.jsonl"))

        yield start
        forks.close()

    with contextlib.ExitStack() as stack:
        yield lambda *script: stack.enter_context(prepared(*script))


def losses(rows):
    return {row["step"]: row["loss"] for row in rows if "event" not in row}


def known(rows):
    return [step for step, loss in losses(rows).items() if loss is not None]


def test_trainers_losses_are_in_the_rows_of_their_steps_in_a_resumed_run_too(run, tmp_path):
    start = run("transformers.trainer", TRAINER)
    result, rows = start("out", "10")
    assert list(losses(rows)) == list(range(1, 11))
    assert known(rows) == [2, 4, 6, 8, 10]
    state = json.loads((tmp_path / "out/checkpoint-10/trainer_state.json").read_text())
    logged = {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    assert {step: loss for step, loss in losses(rows).items() if loss is not None} == logged
    assert result["loss"] == {"first": logged[2], "last": logged[10]}
    assert [row["step"] for row in rows if row.get("event") == "eval"] == [6, 10]
    result, rows = start("out", "16", "out/checkpoint-8")
    assert list(losses(rows)) == list(range(1, 17))
    assert known(rows) == list(range(2, 17, 2))
    assert (result["steps"], result["throughput"]["unit"]) == (16, "steps/s")


def test_lightnings_losses_are_in_the_rows_of_their_steps_in_a_resumed_run_too(run, tmp_path):
    start = run("lightning", LIGHTNING)
    result, rows = start("2")
    assert list(losses(rows)) == list(range(1, 17))
    assert known(rows) == list(range(2, 17, 2))
    assert result["loss"]["last"] == losses(rows)[16]
    assert result["eval"]["accuracy"] == 0.5
    saved = next((tmp_path / "lightning_logs/version_0/checkpoints").glob("*step=16.ckpt"))
    _, rows = start("3", str(saved))
    assert list(losses(rows)) == list(range(1, 25))
    assert known(rows) == list(range(2, 25, 2))


@pytest.fixture
def imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", object())
    monkeypatch.setitem(sys.modules, "lightning", object())


def test_records_from_before_the_script_began_and_damaged_ones_are_left_alone(imported, tmp_path):
    old = tmp_path / "a" / "trainer_state.json"
    old.parent.mkdir()
    old.write_text('{"global_step": 4, "log_history": [{"step": 4, "loss": 1.0}]}')
    os.utime(old, (100, 100))
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4, "log_hist')
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    assert library_records.read([tmp_path], since=1000) is None
    found = library_records.read([tmp_path], since=50)
    assert found is not None and found.steps == {4: {"loss": 1.0}}


@pytest.mark.parametrize("ahead", [-0.5, 3600.0], ids=["behind", "ahead"])
def test_times_are_this_hosts_where_the_clock_of_the_file_system_differs(imported, tmp_path, monkeypatch, ahead):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - ahead)
    began = time.time()
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4, "log_history": [{"step": 4, "loss": 1.0}]}')
    written = time.time()
    found = library_records.read([tmp_path], since=began - 0.1)
    assert found is not None and found.saved is not None
    step, saved = found.saved
    assert (step, began - 0.1 <= saved <= written + 0.1) == (4, True)
    assert [path.name for path in tmp_path.iterdir()] == ["trainer_state.json"]


def test_without_the_library_no_records_are_searched(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    (tmp_path / "trainer_state.json").write_text('{"global_step": 4, "log_history": [{"step": 4, "loss": 1.0}]}')
    monkeypatch.setattr(library_records, "_files", lambda folders: pytest.fail("looked"))
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert library_records.read([tmp_path], since=0) is None


def test_folders_named_in_arguments_are_searched(tmp_path):
    for name in ("out", "logs", "kept", "board"):
        (tmp_path / name).mkdir()
    words = ["--output_dir=out", "log.dir=logs", "--lr", "0.1", "x" * 5000, ""]
    environ = {"LAUNCHER_CHECKPOINT_DIR": str(tmp_path / "kept"), "TENSORBOARD_LOGGING_DIR": "board"}
    found = library_records.folders_of(tmp_path, words, environ)
    assert found == [tmp_path, *(tmp_path / name for name in ("out", "logs", "kept", "board"))]


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
def test_a_record_of_another_program_is_ignored(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", sys)
    (tmp_path / "trainer_state.json").write_text(text)
    assert library_records.read([tmp_path], 0) is None


def test_only_files_of_this_user_are_opened(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", sys)
    for name in ("pipe", "another", "link"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "trainer_state.json")  # which would be waited for
    (tmp_path / "link" / "trainer_state.json").symlink_to("/dev/zero")
    record = tmp_path / "another" / "trainer_state.json"
    record.write_text('{"global_step": 1, "log_history": [{"step": 1, "loss": 0.5}]}')
    assert library_records.read([tmp_path], 0).steps == {1: {"loss": 0.5}}
    monkeypatch.setattr(os, "geteuid", lambda: record.stat().st_uid + 1)
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
