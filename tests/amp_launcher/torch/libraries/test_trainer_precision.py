"""`PrecisionTrainer` against the same loop by hand, its checkpoints, and its proof under the launcher."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import TrainingArguments

from amp_launcher.torch import Precision
from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer
from tests.amp_launcher.torch.scripts import fork
from tests.amp_launcher.torch.trainers import differences

CLIP, MICRO_BATCHES = 0.5, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x=None, labels=None):
        out = self.net(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}


class Recorded(PrecisionTrainer):
    def compute_loss(self, model, inputs, **more):
        vars(self).setdefault("batches", []).append(copy.deepcopy(inputs))
        return super().compute_loss(model, inputs, **more)


def arguments(folder, steps=10, **more):
    words = {"gradient_accumulation_steps": MICRO_BATCHES, "max_grad_norm": CLIP, "learning_rate": 1e-2}
    words |= {"weight_decay": 0.1, "save_steps": 4, "logging_steps": 1, "lr_scheduler_type": "constant"}
    words |= {"disable_tqdm": True, "use_cpu": True, "optim": "adamw_torch_fused"}
    return TrainingArguments(output_dir=str(folder), max_steps=steps, report_to=[], **{**words, **more})


def trained(folder, mode, resume=None, **more):
    torch.manual_seed(0)
    data = [{"x": torch.randn(16), "labels": torch.randn(1)} for _ in range(64)]
    trainer = Recorded(Net(), arguments(folder, **more), train_dataset=data, mode=mode)
    trainer.begun = copy.deepcopy(trainer.model.state_dict())
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


@pytest.mark.parametrize("clip", [CLIP, 0.0])
@pytest.mark.parametrize("mode", ["o0", "o1", "o2", "o3", "fp8"])
def test_it_is_bit_for_bit_the_same_loop_by_hand(tmp_path, mode, clip):
    trainer = trained(tmp_path, mode, max_grad_norm=clip)
    net = Net()
    net.load_state_dict(trainer.begun)
    decayed = trainer.get_decay_parameter_names(net)
    named = list(net.named_parameters())
    groups = [
        {"params": [p for name, p in named if name in decayed], "weight_decay": 0.1},
        {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0},
    ]
    precision = Precision(mode, device="cpu")
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.999), eps=1e-8, fused=True)
    precision.prepare(net, optimizer)
    norms = []
    for number, batch in enumerate(trainer.batches, 1):
        with precision:
            loss = net(**batch)["loss"]
        precision.backward(loss / MICRO_BATCHES)
        if number % MICRO_BATCHES == 0:
            norms.append(precision.step(optimizer, clip=clip or None).grad_norm)
            optimizer.zero_grad()
    assert differences(dict(trainer.model.state_dict()), dict(net.state_dict())) == []
    ours, theirs = trainer.optimizer.state_dict(), optimizer.state_dict()
    assert differences(ours["state"], theirs["state"]) == [] and len(ours["state"]) == 6
    if clip:
        logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        assert logged == pytest.approx([float(norm) for norm in norms]) and len(logged) == 10


def test_trainers_own_checkpoint_resumes_bit_for_bit_with_masters(tmp_path):
    whole = trained(tmp_path / "a", "o2")
    again = trained(tmp_path / "a", "o2", resume=tmp_path / "a" / "checkpoint-4")
    assert len(again.batches) == 12
    ours, theirs = (dict(one.optimizer.state_dict()["state"]) for one in (whole, again))
    assert differences(ours, theirs) == []
    assert ours[0]["master"].dtype == torch.float32
    assert differences(dict(whole.model.state_dict()), dict(again.model.state_dict())) == []


@pytest.mark.parametrize(
    ("mode", "more", "said"), [("o2", {"bf16": True}, "leave fp16 and bf16 out"), ("fp16-mixed", {}, "no loss scale")]
)
def test_what_it_cannot_do_right_is_refused(tmp_path, mode, more, said):
    with pytest.raises(RuntimeError, match=said):
        trained(tmp_path, mode, **more)


SCRIPT = """
import torch
from torch import nn
from transformers import TrainingArguments
from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    def forward(self, x=None, labels=None):
        out = self.net(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
words = TrainingArguments(output_dir="out", max_steps=6, logging_steps=2, report_to=[], use_cpu=True, disable_tqdm=True)
PrecisionTrainer(Net(), words, train_dataset=data).train()
"""


def test_it_is_proved_under_the_launcher_and_its_steps_are_counted_once(tmp_path):
    (tmp_path / "run").mkdir()
    plan = tmp_path / "run" / "plan.json"
    plan.write_text('{"schema": 2, "settings": {"framework": "torch", "amp": {"level": "o2"}, "device": "cpu"}}')
    ended = fork(tmp_path, SCRIPT, "amp=o2", LAUNCHER_SPEC=str(plan))
    assert (ended.code, ended.verdict) == (0, "proved"), ended.out + ended.err
    assert [row["step"] for row in ended.steps] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in ended.steps if row["loss"]] == [2, 4, 6]
