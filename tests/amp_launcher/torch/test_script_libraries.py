"""Scripts of Lightning, transformers' Trainer and accelerate under the wrapper: their switches, and how they end.

Each runs in a process of its own: accelerate keeps its precision for the whole process.
"""

from __future__ import annotations

import functools

import pytest

from tests.amp_launcher.torch.scripts import PLAIN, fork

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


READS_SWITCHES = (
    PLAIN
    + """
read = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
print(*read, torch.get_float32_matmul_precision())
with torch.backends.cudnn.flags(enabled=True):
    torch.set_float32_matmul_precision("high")
"""
)


@pytest.fixture
def run(tmp_path):
    return functools.partial(fork, tmp_path, HF_HUB_OFFLINE="1")


@pytest.mark.parametrize("tf32", ["on", "off"])
@pytest.mark.parametrize(("text", "passed"), [(READS_SWITCHES, ()), (LIGHTNING, ("bf16-mixed",))])
def test_libraries_read_the_switches_that_a_run_on_a_gpu_has_set(run, text, passed, tf32):
    ended = run(text, "amp=o1", passed=passed, TF32=tf32)
    assert (ended.code, ended.verdict) == (0, "proved"), ended.err
    if text == READS_SWITCHES:
        assert ("True True high" if tf32 == "on" else "False False highest") in ended.out


@pytest.mark.parametrize(("text", "dtype"), [(LIGHTNING, "float16"), (LIGHTNING, "bfloat16"), (FABRIC, "bfloat16")])
def test_all_half_is_handed_to_lightning_and_proved(run, text, dtype):
    ended = run(text, "amp=o3", f"amp.dtype={dtype}")
    assert ended.code == 0, ended.err
    assert (ended.result["mechanism"], ended.verdict) == ("lightning_precision", "proved")
    assert ended.result["observed"]["param_dtypes"].keys() == {dtype}


def test_a_lightning_trainer_that_ignores_its_switch_is_contradicted_and_torn_down_at_once(run):
    ended = run(LIGHTNING, "amp=o3", passed=["32-true"])
    assert (ended.code, ended.result["status"], ended.verdict) == (1, "failed", "contradicted")
    assert ended.result["reason"].startswith("what ran was not amp=o3: step 1: 0.0% of forward")
    assert (ended.result["steps"], ended.out.count("took batch")) == (2, 3)
    assert "Traceback" not in ended.err


def test_float16_that_lightning_would_replace_on_a_cpu_is_refused(run):
    ended = run(LIGHTNING, "amp=o1", "amp.dtype=float16")
    assert (ended.code, ended.result) == (2, {})
    assert "Lightning runs bfloat16 where float16 is asked for on a CPU" in ended.err


def test_attention_with_dropout_on_a_cpu_is_counted_apart(run):
    ended = run(TRAINER, "amp=o1", "train.precision=script", passed=[*QUIET, "--bf16"])
    assert (ended.code, ended.verdict) == (0, "proved"), ended.result["reason"]
    apart = "counted apart, as torch has no half precision of it here: scaled_dot_product_attention in float32 ("
    assert apart in ended.result["observed"]["why"]


def test_amp_deny_has_trainers_own_switch_apply_the_precision(run):
    ended = run(TRAINER, "amp=o1", "amp.deny=[scaled_dot_product_attention]", passed=QUIET)
    assert ended.code == 0, ended.err
    assert (ended.result["mechanism"], ended.verdict) == ("accelerate_mixed_precision", "proved")
    assert "kept in float32 as requested: scaled_dot_product_attention" in ended.result["observed"]["why"]


@pytest.mark.parametrize(
    ("words", "passed", "mechanism", "verdict"),
    [
        (("amp.deny=[softmax]",), (), "accelerate_mixed_precision", "proved"),
        (("amp.deny=[softmax]",), ("no",), "accelerate_mixed_precision", "contradicted"),
        ((), ("no",), "autocast_around", "proved"),
    ],
    ids=["switch on", "switch off", "around a script with its switch off"],
)
def test_accelerates_switch_is_observed_like_any_other(run, words, passed, mechanism, verdict):
    ended = run(ACCELERATE, "amp=o1", *words, passed=passed)
    assert (ended.code, ended.verdict) == (verdict != "proved", verdict), ended.err
    assert ended.result["mechanism"] == mechanism
