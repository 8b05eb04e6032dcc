"""Lightning's `Trainer` with our precision plugin, beside a loop by hand."""

from __future__ import annotations

import itertools
import json

import lightning
import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from amp_launcher.precision.levels import amp_named
from amp_launcher.torch.libraries.lightning_precision import LightningPrecision
from amp_launcher.torch.precision import Precision
from amp_launcher.typed import SettingsError
from tests.amp_launcher.torch.scripts import fork
from tests.amp_launcher.torch.trainers import differences

pytestmark = pytest.mark.filterwarnings("ignore")
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
BATCHES = 12


def net_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 1))


def loss_of(net, inputs, targets):
    return nn.functional.mse_loss(net(inputs).float(), targets.float())


def data():
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(8 * BATCHES, size, generator=generator) for size in (32, 1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=8)


class Net(lightning.LightningModule):
    def __init__(self, skips=()):
        super().__init__()
        self.net, self.skips, self.losses = net_of(), skips, []

    def training_step(self, batch, index):
        loss = loss_of(self.net, *batch)
        self.losses.append(loss.item())
        return None if index in self.skips else loss

    def validation_step(self, batch, index):
        self.validated = self.net(batch[0]).dtype

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = loss_of(self.net, *batch)
        self.manual_backward(loss)
        optimizer.step()
        self.losses.append(loss.item())


def fit(mode, model=None, *, path=None, settings=None, validated=None, **words):
    model = model or Net()
    words = {"max_epochs": 1, "accelerator": "cpu", **QUIET, **words}
    trainer = Trainer(plugins=LightningPrecision(mode, **(settings or {})), **words)
    trainer.fit(model, data(), validated, ckpt_path=path)
    return trainer, model


def by_hand(mode, *, clip=None, value=None, accumulate=1, **settings):
    net, losses = net_of(), []
    precision = Precision(mode, device="cpu", **settings)
    net, optimizer = precision.prepare(net, torch.optim.AdamW(net.parameters(), 1e-2))
    optimizer.zero_grad()
    for number, batch in enumerate(data(), 1):
        if precision.level == "o3":  # Lightning gives `training_step` the batch in half precision
            batch = [tensor.to(precision.dtype) for tensor in batch]
        with precision:
            loss = loss_of(net, *batch)
        losses.append(loss.item())
        precision.backward(loss / accumulate)
        if value is not None:
            nn.utils.clip_grad_value_(net.parameters(), value * (precision.scale or 1.0))
        if number % accumulate == 0:
            precision.step(optimizer, clip=clip)
            optimizer.zero_grad()
    return net, losses, optimizer


@pytest.mark.parametrize(
    ("mode", "words", "own"),
    [
        ("o0", {}, {}),
        ("o1", {"gradient_clip_val": 0.1}, {"clip": 0.1}),
        ("o2", {}, {}),
        ("o2", {"gradient_clip_val": 0.1}, {"clip": 0.1}),
        ("o2", {"accumulate_grad_batches": 3, "gradient_clip_val": 0.1}, {"accumulate": 3, "clip": 0.1}),
        ("o3", {"accumulate_grad_batches": 2}, {"accumulate": 2}),
        ("fp8", {}, {}),
        (
            "o2",
            {"settings": {"loss_scale": "dynamic"}, "gradient_clip_val": 0.1},
            {"loss_scale": "dynamic", "clip": 0.1},
        ),
    ],
)
def test_each_mode_trains_as_the_same_loop_by_hand(mode, words, own):
    net, losses, optimizer = by_hand(mode, **own)
    trainer, model = fit(mode, **words)
    assert model.losses == losses
    assert differences(model.net.state_dict(), net.state_dict()) == []
    assert differences(trainer.optimizers[0].state_dict()["state"], optimizer.state_dict()["state"]) == []
    assert trainer.precision_plugin.applied.level == Precision(mode, device="cpu").level


def test_o2_trains_in_half_precision_with_masters_and_fp8_converts_layers():
    trainer, model = fit("o2", validated=data())
    assert (model.net[0].weight.dtype, model.net[1].weight.dtype) == (torch.bfloat16, torch.float32)
    assert trainer.optimizers[0].state[model.net[0].weight]["master"].dtype == torch.float32
    assert model.validated == torch.bfloat16
    trainer, model = fit("fp8")
    assert trainer.precision_plugin.applied.gemm_layers.converted


@pytest.mark.parametrize(
    ("mode", "settings"),
    [("o3", {}), *itertools.product(("o1", "o2", "fp8"), ({}, {"loss_scale": "dynamic"}))],
    ids=str,
)
def test_a_checkpoint_of_lightning_resumes_bit_for_bit(tmp_path, mode, settings):
    whole, model = fit(mode, max_epochs=3, settings=settings)
    first, _ = fit(mode, max_epochs=1, settings=settings)
    first.save_checkpoint(tmp_path / "first.ckpt")
    rest, resumed = fit(mode, max_epochs=3, settings=settings, path=tmp_path / "first.ckpt")
    assert len(resumed.losses) == 2 * BATCHES
    assert resumed.losses == model.losses[BATCHES:]
    assert differences(resumed.state_dict(), model.state_dict()) == []
    assert differences(rest.optimizers[0].state_dict(), whole.optimizers[0].state_dict()) == []


@pytest.mark.parametrize("settings", [{}, {"loss_scale": "dynamic"}], ids=["unscaled", "scaled"])
def test_gradients_are_clipped_by_value_as_well(settings):
    model = fit("o2", gradient_clip_val=1e-3, gradient_clip_algorithm="value", settings=settings)[1]
    assert model.losses == by_hand("o2", value=1e-3, **settings)[1] != by_hand("o2", **settings)[1]


def test_a_batch_without_a_loss_takes_no_step():
    trainer, model = fit("o2", Net(skips={3, 4}))
    assert trainer.optimizers[0].state[model.net[0].weight]["step"] == BATCHES - 2


class Normed(Net):
    def __init__(self):
        super().__init__()
        self.net.append(nn.BatchNorm1d(1))


def test_stochastic_weight_averaging_updates_batch_norms_without_a_step():
    """In an epoch of its own, in which Lightning runs no backward."""
    averaging = lightning.pytorch.callbacks.StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    trainer, model = fit("o2", Normed(), callbacks=[averaging], max_epochs=2)
    assert trainer.optimizers[0].state[model.net[0].weight]["step"] == 2 * BATCHES
    assert model.net[-1].num_batches_tracked == BATCHES


def test_manual_optimization_is_the_same_training_and_is_refused_with_a_loss_scale():
    assert fit("o2", Manual())[1].losses == by_hand("o2")[1]
    with pytest.raises(RuntimeError, match="a loss scale needs automatic optimization"):
        fit("o2", Manual(), settings={"loss_scale": "dynamic"})


def test_a_second_fit_and_a_test_by_the_same_trainer_go_on():
    trainer, model = fit("o2")
    trainer.validate(model, data(), verbose=False)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, data())
    assert len(model.losses) == 2 * BATCHES


def test_an_unknown_mode_lists_the_modes():
    with pytest.raises(SettingsError, match=r"o9.*o0, o1, o2, o3"):
        LightningPrecision("o9")


class Clips(Net):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)


def test_clipping_by_the_module_itself_counts_and_is_refused_with_a_loss_scale():
    assert fit("o2", Clips())[1].losses[-1] != fit("o2")[1].losses[-1]
    with pytest.raises(RuntimeError, match="a loss scale needs automatic optimization"):
        fit("o2", Clips(), settings={"loss_scale": "dynamic"})


SCRIPT = """\
import lightning
import torch
from torch import nn
from amp_launcher.torch.libraries.lightning_precision import LightningPrecision

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32), nn.Linear(32, 1))

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.net(batch[0]).float(), batch[1].float())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
words = {"max_epochs": 1, "accelerator": "cpu", "devices": RANKS, "strategy": "ddp" if RANKS > 1 else "auto", **quiet}
trainer = lightning.Trainer(plugins=LightningPrecision("o1"), **words)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=4))
"""


@pytest.mark.parametrize(("mode", "ranks"), [("o2", 1), ("o3", 1), ("fp8", 1), ("o2", 2)])
def test_a_script_with_the_plugin_has_the_mode_that_the_launcher_was_asked_for(tmp_path, mode, ranks):
    amp, _ = amp_named(mode, None)
    settings = {"framework": "torch", "amp": {"level": amp.level, "gemm": amp.gemm}, "device": "cpu"}
    (tmp_path / "plan.json").write_text(json.dumps({"schema": 2, "settings": settings}))
    text, environ = SCRIPT.replace("RANKS", str(ranks)), {"LAUNCHER_SPEC": str(tmp_path / "plan.json")}
    ended = fork(tmp_path, text, f"amp={mode}", ranks=ranks, **environ)
    assert ended.code == 0, ended.out + ended.err
    assert ended.verdict == "proved", ended.result["observed"]["why"]
    assert mode != "fp8" or "left out: net.4 (the output layer)" in ended.result["observed"]["why"]
    assert (len(ended.steps), ended.result["requested"]["amp"]) == (16 // ranks, amp.level)
