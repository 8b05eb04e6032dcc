"""The recipes' steps in torch against loops written by hand in plain torch, and what making a batch takes of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, interpolate, mse_loss

from amp_launcher.recipes import resnet50 as resnet50_recipe
from amp_launcher.recipes.data import cifar, images, random_regression
from amp_launcher.recipes.efficientnet import ADAM_EPSILON
from amp_launcher.recipes.efficientnet import train_torch as efficientnet_trainer
from amp_launcher.recipes.gan import EPSILON, NOISE, RMSPROP_DECAY
from amp_launcher.recipes.gan import train_torch as gan_trainer
from amp_launcher.recipes.mnist import train_torch as mnist_trainer
from amp_launcher.recipes.resnet50 import train_torch as resnet50_trainer
from amp_launcher.recipes.simplenet import STEPS_PER_EPOCH
from amp_launcher.recipes.simplenet import train_torch as simplenet_trainer
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import draw_glorot, to_device
from benchmarks.steps import HandStep

CPU = torch.device("cpu")


def one_thread() -> None:
    torch.set_num_threads(1)


def _plain(run: Run, optimizer: torch.optim.Optimizer, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> HandStep:
    """The usual hand-written step, at o0 or o1."""
    half = run.settings.amp.level == "o1"

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = loss_of(chosen)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _mnist(run: Run) -> HandStep:
    if run.settings.amp.level == "o2":
        return _mnist_o2(run)
    inputs, labels = to_device(images.load(run.settings.data, run.settings.seed).train, CPU)
    model = mnist_trainer.Net(run.settings.train).train()
    optimizer = _adadelta(run, list(model.parameters()))
    return _plain(run, optimizer, lambda chosen: cross_entropy(model(inputs[chosen]).float(), labels[chosen]))


def _mnist_o2(run: Run) -> HandStep:
    inputs, labels = to_device(images.load(run.settings.data, run.settings.seed).train, CPU)
    model = mnist_trainer.Net(run.settings.train).to(torch.bfloat16).train()  # it has no norms
    weights = list(model.parameters())
    masters = [weight.detach().float() for weight in weights]
    for master in masters:
        master.grad = torch.zeros_like(master)
    gradients = [master.grad for master in masters]
    optimizer = _adadelta(run, masters)

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(inputs[chosen]).float(), labels[chosen])
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_(gradients, [weight.grad for weight in weights])
            optimizer.step()
            torch._foreach_copy_(weights, masters)
        model.zero_grad()

    return step


def _adadelta(run: Run, weights: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adadelta(weights, lr=run.settings.train.lr, rho=run.settings.train.rho)


def _simplenet(run: Run) -> HandStep:
    hyper = run.settings.train
    data = random_regression.load(run.settings.seed, STEPS_PER_EPOCH * run.settings.batch, hyper.width)
    inputs, labels = torch.from_numpy(data.inputs), torch.from_numpy(data.labels)
    net = simplenet_trainer.Net(hyper)
    optimizer = torch.optim.SGD(net.parameters(), lr=hyper.lr)
    return _plain(run, optimizer, lambda chosen: mse_loss(net(inputs[chosen]).float(), labels[chosen]))


def _resnet50(run: Run) -> HandStep:
    hyper = run.settings.train
    ((inputs, labels),), _ = resnet50_trainer.synthetic_batch(run)
    net = resnet50_trainer.Net(hyper).to(memory_format=torch.channels_last).train()
    decayed = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": hyper.weight_decay}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=hyper.momentum)
    rates = map(resnet50_recipe.schedule(run.settings, 500 * run.settings.batch), range(10**6))

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        return cross_entropy(net(inputs).float(), labels, label_smoothing=hyper.label_smoothing)

    plain = _plain(run, optimizer, loss_of)

    def step(chosen: torch.Tensor) -> None:
        rate = next(rates)
        for group in optimizer.param_groups:
            group["lr"] = rate
        plain(chosen)

    return step


def _efficientnet(run: Run) -> HandStep:
    pixels, labels = to_device(cifar.load(run.settings.data, run.settings.seed).train, CPU)
    net = efficientnet_trainer.Net(run.settings.train).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=run.settings.train.lr, eps=ADAM_EPSILON)

    def loss_of(chosen: torch.Tensor) -> torch.Tensor:
        return cross_entropy(net(_resized(pixels[chosen], run.settings.train.side)).float(), labels[chosen])

    return _plain(run, optimizer, loss_of)


def _gan(run: Run) -> HandStep:
    hyper = run.settings.train
    real, _ = to_device(images.load(run.settings.data, run.settings.seed).train, CPU)
    generator, discriminator = gan_trainer.Generator(hyper), gan_trainer.Discriminator()
    draw_glorot(generator)
    draw_glorot(discriminator)
    makers = torch.optim.Adam(generator.parameters(), lr=hyper.generator_lr, eps=EPSILON)
    judges = torch.optim.RMSprop(
        discriminator.parameters(), lr=hyper.discriminator_lr, alpha=RMSPROP_DECAY, eps=EPSILON
    )

    def step(chosen: torch.Tensor) -> None:
        count = len(chosen)
        discriminator.requires_grad_(False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = discriminator(generator(torch.rand(count, NOISE) * 2 - 1)).float()
            loss = binary_cross_entropy_with_logits(logits, torch.full_like(logits, hyper.soften))
        loss.backward()
        makers.step()
        makers.zero_grad()
        discriminator.requires_grad_(True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                fake = generator(torch.rand(count, NOISE) * 2 - 1)
            logits = discriminator(torch.cat((real[chosen].to(fake.dtype), fake))).float()
            loss = binary_cross_entropy_with_logits(logits, gan_trainer.labels(count, hyper, CPU))
        loss.backward()
        judges.step()
        judges.zero_grad()

    return step


def _taken_and_resized(run: Run) -> HandStep:
    pixels, labels = to_device(cifar.load(run.settings.data, run.settings.seed).train, CPU)
    return lambda chosen: (_resized(pixels[chosen], run.settings.train.side), labels[chosen])


def _taken(run: Run) -> HandStep:
    inputs, labels = to_device(images.load(run.settings.data, run.settings.seed).train, CPU)
    return lambda chosen: (inputs[chosen], labels[chosen])


def _resized(pixels: torch.Tensor, size: int) -> torch.Tensor:
    floats = pixels.contiguous(memory_format=torch.channels_last).float()
    return interpolate(floats, size=(size, size), mode="bilinear", align_corners=False) / 255


BY_HAND = {
    "mnist": _mnist,
    "simplenet": _simplenet,
    "resnet50": _resnet50,
    "efficientnet": _efficientnet,
    "gan": _gan,
}
INPUTS = {"mnist": _taken, "efficientnet": _taken_and_resized}
"""What makes a batch."""
