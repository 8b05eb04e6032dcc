"""Each recipe's step at o1 against a loop written by hand, and what its input costs beside its step."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, interpolate, mse_loss

from benchmarks.measure import Measured, by_turns
from benchmarks.training import measure
from recipes import resnet50 as resnet50_recipe
from recipes.data import cifar, images, pairs
from recipes.efficientnet import ADAM_EPSILON
from recipes.gan import EPSILON, NOISE, RMSPROP_DECAY
from recipes.settings import Data
from recipes.simplenet import STEPS_PER_EPOCH
from recipes.torch_ import efficientnet as efficientnet_trainer
from recipes.torch_ import gan as gan_trainer
from recipes.torch_ import resnet50 as resnet50_trainer
from recipes.torch_ import simplenet as simplenet_trainer
from recipes.torch_.loop import Run
from recipes.torch_.supervised import draw_glorot, to_device

LIMIT = 1.03
HandStep = Callable[[torch.Tensor], None]


def simplenet(folder: Path) -> Measured:
    words = ["amp=o1", "train.width=512", "batch=256", "epochs=30"]
    return measure(
        folder,
        name="step-simplenet",
        recipe="simplenet",
        words=words,
        hand=_simplenet,
        limit=LIMIT,
        note="nine layers of 512, batch 256",
    )


def resnet50(folder: Path) -> Measured:
    words = ["amp=o1", "train.image_size=64", "batch=8", "steps=80"]
    return measure(
        folder,
        name="step-resnet50",
        recipe="resnet50",
        words=words,
        hand=_resnet50,
        limit=LIMIT,
        note="one random batch of 8 images of 64x64",
    )


def efficientnet(folder: Path) -> Measured:
    words = ["amp=o1", "data=synthetic", "train.image_size=64", "batch=16", "steps=80"]
    return measure(
        folder,
        name="step-efficientnet",
        recipe="efficientnet",
        words=words,
        hand=_efficientnet,
        limit=LIMIT,
        note="random images resized to 64x64, batch 16",
    )


def gan(folder: Path) -> Measured:
    words = ["amp=o1", "data=digits", "batch=64", "epochs=4"]
    return measure(folder, name="step-gan", recipe="gan", words=words, hand=_gan, limit=LIMIT, note="digits, batch 64")


def input_share(folder: Path) -> Measured:
    """What taking and resizing a batch of CIFAR-100 costs beside the step that it is made for, at the full size."""
    torch.set_num_threads(1)
    data = cifar.load(Data(name="synthetic"), 0)
    pixels, labels = to_device(data.train, torch.device("cpu"))
    net = efficientnet_trainer.Net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters())
    chosen = torch.randperm(len(labels))[:4]

    def taken() -> float:
        began = time.perf_counter()
        _resized(pixels[chosen], 224)
        return time.perf_counter() - began

    def step() -> float:
        inputs, began = _resized(pixels[chosen], 224), time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(net(inputs).float(), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    ours, theirs = "taking and resizing a batch", "the step that it is for"
    return Measured(
        name="input-cifar",
        claim="making a batch of CIFAR-100 at most 0.02 times the step that it is for",
        limit=0.02,
        ours=ours,
        theirs=theirs,
        timings=by_turns({ours: taken, theirs: step}, rounds=9),
        note="four images of 224x224 at o1, one thread; CIFAR-100 and synthetic images lie in the device's memory",
    )


def _resized(pixels: torch.Tensor, size: int) -> torch.Tensor:
    floats = pixels.contiguous(memory_format=torch.channels_last).float()
    return interpolate(floats, size=(size, size), mode="bilinear", align_corners=False) / 255


def _simplenet(run: Run) -> HandStep:
    hyper, device = run.settings.train, run.world.device
    data = pairs.load(run.settings.seed, STEPS_PER_EPOCH * run.settings.batch, hyper.width)
    inputs, labels = torch.from_numpy(data.inputs).to(device), torch.from_numpy(data.labels).to(device)
    net = simplenet_trainer.Net(hyper).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=hyper.lr)

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = mse_loss(net(inputs[chosen]).float(), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _resnet50(run: Run) -> HandStep:
    hyper, device = run.settings.train, run.world.device
    ((inputs, labels),), _ = resnet50_trainer.synthetic_batch(run)
    net = resnet50_trainer.Net(hyper).to(device, memory_format=torch.channels_last).train()
    decayed = [each for each in net.parameters() if each.ndim > 1]
    others = [each for each in net.parameters() if each.ndim == 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": hyper.weight_decay}, {"params": others}], lr=0.1, momentum=hyper.momentum
    )
    rate = resnet50_recipe.schedule(run.settings, 500 * run.settings.batch)
    number = 0

    def step(chosen: torch.Tensor) -> None:
        nonlocal number
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        number += 1
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = cross_entropy(net(inputs).float(), labels, label_smoothing=hyper.label_smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _efficientnet(run: Run) -> HandStep:
    hyper, device = run.settings.train, run.world.device
    pixels, labels = to_device(cifar.load(run.settings.data, run.settings.seed).train, device)
    net = efficientnet_trainer.Net().to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=hyper.lr, eps=ADAM_EPSILON)

    def step(chosen: torch.Tensor) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = cross_entropy(net(_resized(pixels[chosen], hyper.image_size)).float(), labels[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _gan(run: Run) -> HandStep:
    hyper, device = run.settings.train, run.world.device
    real, _ = to_device(images.load(run.settings.data, run.settings.seed).train, device)
    generator, discriminator = gan_trainer.Generator(hyper).to(device), gan_trainer.Discriminator().to(device)
    draw_glorot(generator)
    draw_glorot(discriminator)
    makers = torch.optim.Adam(generator.parameters(), lr=hyper.generator_lr, eps=EPSILON)
    judges = torch.optim.RMSprop(
        discriminator.parameters(), lr=hyper.discriminator_lr, alpha=RMSPROP_DECAY, eps=EPSILON
    )

    def step(chosen: torch.Tensor) -> None:
        count = len(chosen)
        discriminator.requires_grad_(False)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = discriminator(generator(torch.rand(count, NOISE, device=device) * 2 - 1)).float()
            loss = binary_cross_entropy_with_logits(logits, torch.full_like(logits, hyper.soften))
        loss.backward()
        makers.step()
        makers.zero_grad()
        discriminator.requires_grad_(True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            with torch.no_grad():
                fake = generator(torch.rand(count, NOISE, device=device) * 2 - 1)
            logits = discriminator(torch.cat((real[chosen].to(fake.dtype), fake))).float()
            loss = binary_cross_entropy_with_logits(logits, gan_trainer.labels(count, hyper, device))
        loss.backward()
        judges.step()
        judges.zero_grad()

    return step
