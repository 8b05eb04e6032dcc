"""`PrecisionTrainer` against the same loop by hand, its checkpoints, and its proof under the launcher."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from transformers import Trainer, TrainingArguments

from amp_launcher.precision.levels import Amp
from amp_launcher.torch import Precision
from amp_launcher.torch.libraries.trainer_precision import PrecisionTrainer
from tests.amp_launcher.torch.scripts import fork
from tests.amp_launcher.torch.trainers import differences

CLIP, MICRO_BATCHES = 0.5, 2
O2_IN_FLOAT16 = Amp(level="o2", dtype="float16")


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
    words |= {"weight_decay": 0.1, "save_steps": 4, "logging_steps": 1, "lr_scheduler_type": "linear"}
    words |= {"disable_tqdm": True, "use_cpu": True, "optim": "adamw_torch_fused"}
    return TrainingArguments(output_dir=str(folder), max_steps=steps, report_to=[], **{**words, **more})


def trained(folder, mode, resume=None, **more):
    torch.manual_seed(0)
    data = [{"x": torch.randn(16), "labels": torch.randn(1)} for _ in range(64)]
    trainer = Recorded(Net(), arguments(folder, **more), train_dataset=data, mode=mode)
    trainer.begun = copy.deepcopy(trainer.model.state_dict())
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer


@pytest.mark.parametrize(
    ("mode", "clip"),
    [*((mode, CLIP) for mode in ("o0", "o1", "o2", "o3", "fp8", "fp16-mixed", O2_IN_FLOAT16)), (O2_IN_FLOAT16, 0.0)],
)
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
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (10 - step) / 10)
    norms, applied = [], []
    for number, batch in enumerate(trainer.batches, 1):
        with precision:
            loss = net(**batch)["loss"]
        precision.backward(loss / MICRO_BATCHES)
        if number % MICRO_BATCHES == 0:
            outcome = precision.step(optimizer, clip=clip or None)
            norms.append(outcome.grad_norm)
            applied.append(outcome.applied)
            if outcome.applied:
                schedule.step()
            optimizer.zero_grad()
    assert differences(dict(trainer.model.state_dict()), dict(net.state_dict())) == []
    ours, theirs = trainer.optimizer.state_dict(), optimizer.state_dict()
    assert differences(ours["state"], theirs["state"]) == [] and len(ours["state"]) == 6
    assert trainer.lr_scheduler.get_last_lr() == schedule.get_last_lr()
    assert all(applied) == (precision.scale is None) and any(applied), "float16's first steps overflow"
    if clip:
        logged = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        assert logged == pytest.approx([float(norm) for norm in norms]) and len(logged) == 10


@pytest.mark.parametrize("mode", ["o2", O2_IN_FLOAT16])
def test_trainers_own_checkpoint_resumes_bit_for_bit_with_masters_and_loss_scale(tmp_path, mode):
    whole = trained(tmp_path / "a", mode)
    again = trained(tmp_path / "a", mode, resume=tmp_path / "a" / "checkpoint-4")
    assert (again.applied.scale, again.applied.skipped_total) == (whole.applied.scale, whole.applied.skipped_total)
    assert len(again.batches) == 12
    ours, theirs = (dict(one.optimizer.state_dict()["state"]) for one in (whole, again))
    assert differences(ours, theirs) == []
    assert ours[0]["master"].dtype == torch.float32
    assert differences(dict(whole.model.state_dict()), dict(again.model.state_dict())) == []


class AnotherLibrarys(Trainer):
    """Does what those of sentence-transformers do: clears gradients by the optimizer, and evaluates by plain calls."""

    def training_step(self, *given, **named):
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        return super().training_step(*given, **named)

    def evaluation_loop(self, *given, **named):
        output = super().evaluation_loop(*given, **named)
        out = self.model(torch.ones(2, 16), torch.zeros(2, 1))["logits"]
        output.metrics["eval_plain"] = str((out.dtype, torch.is_autocast_enabled("cpu")))
        return output


class Mixed(PrecisionTrainer, AnotherLibrarys):
    pass


@pytest.mark.parametrize("mode", ["o0", "o2"])
def test_another_librarys_trainer_is_a_base_beside_it_and_calls_the_model_anywhere(tmp_path, mode):
    data = [{"x": torch.randn(16), "labels": torch.randn(1)} for _ in range(8)]
    words = arguments(tmp_path, 3, gradient_accumulation_steps=1)
    trainer = Mixed(Net(), words, train_dataset=data, eval_dataset=data, mode=mode)
    trainer.train()
    assert trainer.evaluate()["eval_plain"] == "(torch.float32, False)"
    with pytest.raises(TypeError, match="'NoneType'"):
        trainer.model(torch.ones(2, 16))  # without labels
    assert not torch.is_autocast_enabled("cpu")
    torch.save(trainer.model, tmp_path / "model.pt")
    copied = copy.deepcopy(trainer.model)(torch.ones(2, 16), torch.zeros(2, 1))
    assert copied["logits"].dtype == torch.float32


def test_trainers_own_precision_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="leave fp16 and bf16 out"):
        trained(tmp_path, "o2", bf16=True)


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


def test_fsdp_is_refused_before_the_first_step(tmp_path):
    text = SCRIPT.replace(
        'output_dir="out"', 'output_dir="out", fsdp="full_shard", fsdp_config={"fsdp_version": 2}, ddp_backend="gloo"'
    )
    ended = fork(tmp_path, text, "amp=o2", ranks=2)
    assert ended.code != 0 and not ended.steps
    if "There are currently no available devices found" not in ended.err:  # an older transformers', before ours
        assert "PrecisionTrainer trains on one device and with DDP, without FSDP and DeepSpeed" in ended.err
