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
    with pytest.raises(RuntimeError, match="it was not prepared, with its model, by this Precision"):
        precision.backward(loss, torch.optim.SGD(model.parameters()))
    precision.backward(loss, optimizer)
    assert precision.step(optimizer, clip=1e9).grad_norm.item() == 1.0  # unscaled by its own scale


class Gan:
    """A generator and a critic with clamped weights, whose losses overflow in float16 now and then."""

    def __init__(self):
        torch.manual_seed(0)
        self.generator, self.critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=1e-3) for net in (self.generator, self.critic)]
        self.random = torch.Generator().manual_seed(1)
        self.scales = []

    def losses(self, kind, detached=True):
        """A block makes each of them; several of one step are summed by their backwards."""
        factor = 8 * 2.0 ** (8 * torch.rand((), generator=self.random).item() ** 8)
        noise, real = (torch.randn(8, 4, generator=self.random) for _ in range(2))
        if kind == "generator":
            return [lambda: -self.critic(self.generator(noise)).float().mean() * factor]
        return [
            lambda: self.critic(self.made(noise, detached)).float().mean() * factor,
            lambda: -self.critic(real).float().mean() * factor,
        ]

    def made(self, noise, detached):
        made = self.generator(noise)
        return made.detach() if detached else made

    def clamp(self):
        with torch.no_grad():
            for weight in self.critic.parameters():
                weight.clamp_(-0.25, 0.25)


@pytest.mark.parametrize(("critic_steps", "detached", "named"), [(1, True, False), (5, False, True)])
def test_a_gan_with_several_backwards_a_step_trains_as_with_gradscaler(critic_steps, detached, named):
    """With an `update` behind the generator's step, and behind each critic's step that another one follows. A critic's
    loss that isn't detached reaches the generator's weights too."""
    ours, theirs = Gan(), Gan()
    precision = of("o1", "float16", LossScale(mode="dynamic", init=2.0**14, growth_every=20))
    precision.prepare(ours.generator, ours.critic, *ours.optimizers)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=20)
    for _ in range(300 // critic_steps):
        for step in range(critic_steps + 1):
            kind = "generator" if step == critic_steps else "critic"
            for gan in (ours, theirs):
                gan.optimizers[kind == "critic"].zero_grad()
            for mine, plain in zip(ours.losses(kind, detached), theirs.losses(kind, detached), strict=True):
                with precision:
                    loss = mine()
                precision.backward(loss, ours.optimizers[kind == "critic"] if named else None)
                ours.scales.append(precision.scale)  # between the steps of two optimizers, which it leaves alone
                with torch.autocast("cpu", torch.float16):
                    loss = plain()
                scaler.scale(loss).backward()
                theirs.scales.append(scaler.get_scale())
            precision.step(ours.optimizers[kind == "critic"])
            scaler.step(theirs.optimizers[kind == "critic"])
            if step != critic_steps - 1:
                scaler.update()
            ours.clamp()
            theirs.clamp()
    assert ours.scales == theirs.scales and len(set(ours.scales)) > 5
    for mine, plain in ((ours.generator, theirs.generator), (ours.critic, theirs.critic)):
        assert all(map(torch.equal, mine.parameters(), plain.parameters()))


@pytest.mark.parametrize("level", ["o1", "o2"])
def test_steps_by_losses_that_reach_others_weights_are_refused_until_they_are_named(level):
    gan = Gan()
    precision = of(level, "float16", LossScale(mode="dynamic", init=1.0, growth_every=1))
    precision.prepare(gan.generator, gan.critic, *gan.optimizers)

    def train(kind, **named):
        for loss_of in gan.losses(kind, detached=False):  # of a critic's, only the first reaches the generator
            with precision:
                loss = loss_of()
            precision.backward(loss, **named)
        precision.step(gan.optimizers[kind == "critic"])

    train("critic")
    train("generator")
    assert precision.scale == 2.0
    train("critic")
    weights = [weight.clone() for weight in gan.critic.parameters()]
    with pytest.raises(RuntimeError, match=r"steps again before .*: precision\.backward\(loss, optimizer\)"):
        train("critic")
    assert all(map(torch.equal, gan.critic.parameters(), weights))
    train("critic", optimizer=gan.optimizers[1])
    train("generator", optimizer=gan.optimizers[0])
    assert precision.scale == 8.0
