"""Loss scaling beside torch's own scaler, and what is torch's alone. The rules of all presets are in the contract."""

from __future__ import annotations

import pytest
import torch

from amp_launcher.precision.levels import LossScale
from amp_launcher.torch.precision.loss_scale import LossScaler
from tests.amp_launcher.torch.loops import CPU, of


class Trained:
    """One weight that moves by 1 in every good step, so that it counts them."""

    def __init__(self, scaler, **optimizer):
        self.scaler = scaler
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0, **optimizer)

    def step(self, bad):
        scale = self.scaler.scale(torch.ones(()))
        self.weight.grad = torch.full((1,), torch.inf if bad else -scale.item())
        self.scaler.step(self.optimizer)


def test_what_an_optimizer_found_outlives_the_update():
    """`GradScaler.update` adds the findings up in place, in the first optimizer's own tensor."""
    scaler = LossScaler(LossScale(mode="dynamic"), CPU)
    good, bad = Trained(scaler), Trained(scaler)
    good.step(False)
    overflowed = scaler.overflowed(good.optimizer)
    bad.step(True)
    scaler.update()
    assert not overflowed


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_an_optimizer_without_gradients_takes_its_step_of_nothing(fused, unscale):
    scaler = LossScaler(LossScale(mode="dynamic", init=64.0, growth_every=2), CPU)
    idle, busy = Trained(scaler, fused=fused), Trained(scaler, fused=fused)
    scaler.scale(torch.ones(()))
    for bad, scale in ((False, 64.0), (False, 128.0), (True, 64.0)):
        if unscale:
            scaler.unscale_(idle.optimizer)
        scaler.step(idle.optimizer)
        busy.step(bad)
        assert not scaler.overflowed(idle.optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
    scaler.step(idle.optimizer)
    scaler.update()
    assert scaler.get_scale() == 64.0
    assert (idle.weight.item(), busy.weight.item(), scaler.skipped) == (0.0, 2.0, 1)


@pytest.mark.parametrize("bad", [False, True])
def test_a_fused_optimizer_skips_bad_steps_too(bad):
    ours = Trained(LossScaler(LossScale(mode="dynamic"), CPU), fused=True)
    ours.step(bad)
    assert ours.weight.item() == (0.0 if bad else 1.0)
    assert ours.scaler.skipped == bad


def test_the_private_names_of_gradscaler_that_are_read_are_there_until_the_update():
    ours = Trained(LossScaler(LossScale(mode="dynamic"), CPU))
    assert ours.scaler._scale is None
    ours.step(True)
    assert isinstance(ours.scaler._scale, torch.Tensor)
    (state,) = ours.scaler._per_optimizer_states.values()
    (flag,) = state["found_inf_per_device"].values()
    assert flag.item() == 1.0
    ours.scaler.update()
    assert not ours.scaler._per_optimizer_states


def test_several_optimizers_with_scales_of_their_own_say_whose_loss_it_is():
    precision = of("o1", scale=LossScale(mode="dynamic", per_optimizer=True))
    model = precision.prepare(torch.nn.Linear(1, 1))
    for parameter in model.parameters():
        optimizer = precision.prepare(torch.optim.SGD([parameter], lr=0.1))
    with precision:
        loss = model(torch.ones(1, 1)).sum()
    with pytest.raises(RuntimeError, match=r"with 2 optimizers: say whose loss it is.*backward\(loss, optimizer\)"):
        precision.backward(loss)
    precision.backward(loss, optimizer)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 1.0  # unscaled by its own scale
