"""Scripts of Lightning, transformers' Trainer and accelerate under the wrapper: their switches, and how they end.

Each runs in a process of its own: accelerate keeps its precision for the whole process.
"""

from __future__ import annotations

import json

import pytest

from tests.recipes.torch_ import trainers

LIGHTNING = """\
import sys
import lightning
import torch
from torch import nn

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        print("took batch", index, flush=True)
        return nn.functional.mse_loss(self.net(batch[0]).float(), batch[1].float())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
if len(sys.argv) > 1:
    quiet["precision"] = sys.argv[1]
lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Net(), torch.utils.data.DataLoader(data, batch_size=8))
"""
TRAINER = """\
import torch
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=32, **size))
words, mask = torch.randint(0, 64, (16,)), torch.ones(16, dtype=torch.long)
rows = [{"input_ids": words, "attention_mask": mask, "labels": torch.tensor(number % 2)} for number in range(64)]
Trainer(model=model, args=args, train_dataset=rows).train()
"""
QUIET = ("--output_dir=out", "--use_cpu", "--report_to=none", "--num_train_epochs=1", "--save_strategy=no")
FABRIC = """\
import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="cpu", devices=1, precision="32-true")
net = nn.Linear(32, 1)
net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.01))
for step in range(4):
    optimizer.zero_grad()
    fabric.backward(net(torch.randn(8, 32)).float().sum())
    optimizer.step()
"""
ACCELERATE = """\
import sys
import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision=sys.argv[1] if len(sys.argv) > 1 else None)
net = nn.Sequential(nn.Linear(32, 64), nn.Softmax(-1), nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
net, optimizer, loader = accelerator.prepare(net, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
for inputs, targets in loader:
    optimizer.zero_grad()
    accelerator.backward(nn.functional.mse_loss(net(inputs), targets))
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script under the wrapper in a process of its own: the process, and its result."""

    def start(text, *words, passed=()):
        (tmp_path / "train.py").write_text(text)
        words = [*words, "device=cpu", f"script={tmp_path}/train.py", f"workdir={tmp_path}", f"run={tmp_path}/run"]
        ended = trainers.run([*words, "--", *passed], 1, trainers.SCRIPT, HF_HUB_OFFLINE="1")
        found = tmp_path / "run" / "result.json"
        return ended, json.loads(found.read_text()) if found.exists() else {}

    return start


@pytest.mark.parametrize(("text", "dtype"), [(LIGHTNING, "float16"), (LIGHTNING, "bfloat16"), (FABRIC, "bfloat16")])
def test_all_half_is_handed_to_lightning_and_proved(run, text, dtype):
    ended, found = run(text, "amp=o3", f"amp.dtype={dtype}")
    assert ended.returncode == 0, ended.stderr
    assert (found["mechanism"], found["observed"]["verdict"]) == ("lightning_precision", "proved")
    assert found["observed"]["param_dtypes"].keys() == {dtype}


def test_a_lightning_trainer_that_passes_over_its_switch_is_contradicted_and_torn_down_at_once(run):
    ended, found = run(LIGHTNING, "amp=o3", passed=["32-true"])
    assert (ended.returncode, found["status"], found["observed"]["verdict"]) == (1, "failed", "contradicted")
    assert found["reason"].startswith("what ran was not amp=o3: step 1: 0.0% of forward")
    assert (found["steps"], ended.stdout.count("took batch")) == (2, 3)
    assert "Traceback" not in ended.stderr


def test_float16_that_lightning_would_replace_on_a_cpu_is_refused(run):
    ended, found = run(LIGHTNING, "amp=o1", "amp.dtype=float16")
    assert (ended.returncode, found) == (2, {})
    assert "Lightning runs bfloat16 where float16 is asked for on a CPU" in ended.stderr


def test_attention_with_dropout_ends_a_trainer_run_with_both_ways_on(run):
    ended, found = run(TRAINER, "amp=o1", "train.precision=script", passed=[*QUIET, "--bf16"])
    assert (ended.returncode, found["observed"]["verdict"], found["steps"]) == (1, "contradicted", 2)
    assert "scaled_dot_product_attention in float32 (24 calls): torch chooses the kernel" in found["reason"]
    ways = ("amp.deny=[scaled_dot_product_attention]", "proof.share=0.85")
    assert f"({' or '.join(ways)} accepts that)" in found["reason"]
    ended, found = run(TRAINER, "amp=o1", "train.precision=script", ways[1], passed=[*QUIET, "--bf16"])
    assert (ended.returncode, found["observed"]["verdict"]) == (0, "proved"), found["reason"]
    assert found["requested"]["proof_share"] == 0.85
    assert "accepted by proof.share=0.85" in found["observed"]["why"]


def test_amp_deny_has_trainers_own_switch_apply_the_precision(run):
    ended, found = run(TRAINER, "amp=o1", "amp.deny=[scaled_dot_product_attention]", passed=QUIET)
    assert ended.returncode == 0, ended.stderr
    assert (found["mechanism"], found["observed"]["verdict"]) == ("accelerate_mixed_precision", "proved")
    assert "kept in float32 as requested: scaled_dot_product_attention" in found["observed"]["why"]


def test_accelerates_switch_is_observed_like_any_other(run):
    ended, found = run(ACCELERATE, "amp=o1", "amp.deny=[softmax]")
    assert ended.returncode == 0, ended.stderr
    assert (found["mechanism"], found["observed"]["verdict"]) == ("accelerate_mixed_precision", "proved")
    ended, found = run(ACCELERATE, "amp=o1", "amp.deny=[softmax]", passed=["no"])
    assert (ended.returncode, found["observed"]["verdict"]) == (1, "contradicted")
    ended, found = run(ACCELERATE, "amp=o1", passed=["no"])
    assert (found["mechanism"], found["observed"]["verdict"]) == ("autocast_around", "proved"), (
        "whatever it sets itself"
    )
