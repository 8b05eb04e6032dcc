"""What Trainer and Lightning log of their steps gets into the rows of a script's, in a resumed run too."""

from __future__ import annotations

import json

import pytest

from tests.amp_launcher.torch.scripts import fork

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
trainer.fit(Net(), data, data, ckpt_path=sys.argv[2] if len(sys.argv) > 2 else None)
"""


@pytest.fixture
def run(tmp_path):
    """Runs an attempt of a script with these arguments: its result, its rows, the losses in them by step."""

    def start(text, *passed, attempt=1):
        ended = fork(tmp_path, text, "amp=o0", "require_proof=false", passed=passed, attempt=attempt)
        assert ended.code == 0, ended.out + ended.err
        losses = {row["step"]: row["loss"] for row in ended.steps}
        assert list(losses) == list(range(1, len(losses) + 1))
        return ended, {step: loss for step, loss in losses.items() if loss is not None}

    return start


def test_trainers_losses_are_in_the_rows_of_their_steps_in_a_resumed_run_too(run, tmp_path):
    ended, losses = run(TRAINER, "out", "10")
    state = json.loads((tmp_path / "out/checkpoint-10/trainer_state.json").read_text())
    assert losses == {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    assert (len(ended.steps), list(losses)) == (10, [2, 4, 6, 8, 10])
    assert ended.result["loss"] == {"first": losses[2], "last": losses[10]}
    assert [row["step"] for row in ended.rows if row.get("event") == "eval"] == [6, 10]
    ended, losses = run(TRAINER, "out", "16", "out/checkpoint-8", attempt=2)
    assert (len(ended.steps), list(losses)) == (16, list(range(2, 17, 2)))
    assert (ended.result["steps"], ended.result["throughput"]["unit"]) == (16, "steps/s")


def test_lightnings_losses_are_in_the_rows_of_their_steps_in_a_resumed_run_too(run, tmp_path):
    ended, losses = run(LIGHTNING, "2")
    assert (len(ended.steps), list(losses)) == (16, list(range(2, 17, 2)))
    assert ended.result["loss"]["last"] == losses[16]
    assert ended.result["eval"]["accuracy"] == 0.5
    saved = next((tmp_path / "lightning_logs/version_0/checkpoints").glob("*step=16.ckpt"))
    ended, losses = run(LIGHTNING, "3", str(saved), attempt=2)
    assert (len(ended.steps), list(losses)) == (24, list(range(2, 25, 2)))
