"""The MNIST recipe: `python -m recipes.torch_.mnist amp=o2 batch=512 [run=FOLDER]`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from recipes.data import images
from recipes.mnist import MnistSettings
from recipes.torch_ import loop
from recipes.torch_.loop import Run
from recipes.torch_.precision import StepOutcome

HELD_OUT_BATCH = 1000


class Net(nn.Sequential):
    """Two convolutions and two dense layers: float images [batch, 1, 28, 28] to logits [batch, 10]."""

    def __init__(self, settings: MnistSettings) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.relu2 = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.dropout1 = nn.Dropout(settings.dropout_conv)
        self.flatten = nn.Flatten()
        self.dense1 = nn.Linear(9216, 128)
        self.relu3 = nn.ReLU()
        self.dropout2 = nn.Dropout(settings.dropout_dense)
        self.dense2 = nn.Linear(128, 10)


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    data = world.rank_zero_first(lambda: images.load(settings.data, settings.seed))
    inputs, labels = to_device(data.train, world.device)
    held_out_inputs, held_out_labels = to_device(data.held_out, world.device)

    net = precision.cast(Net(hyper).to(world.device))
    model = run.wrap(net)
    optimizer = precision.optimizer(net, torch.optim.Adadelta(net.parameters(), lr=hyper.lr, rho=hyper.rho))

    def step(batch: torch.Tensor) -> tuple[torch.Tensor, StepOutcome]:
        """One optimizer step on this rank's samples, whose indices have shape [micro-batches, samples in each]."""
        net.train()
        step_loss = torch.zeros((), device=world.device)
        for number, chosen in enumerate(batch, start=1):
            with world.gradients(model, last=number == len(batch)):
                with precision.forward():
                    logits = model(precision.input(inputs[chosen]))
                    loss = cross_entropy(logits.float(), labels[chosen]) / len(batch)
                precision.backward(loss)
            step_loss += loss.detach()
        outcome = precision.step(optimizer, clip=hyper.clip)
        precision.update()
        optimizer.zero_grad()
        return step_loss, outcome

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        """Accuracy and mean loss on the held-out images, each rank taking its share of them."""
        net.eval()
        correct, total_loss = 0.0, 0.0
        mine = torch.arange(world.rank, len(held_out_labels), world.size, device=world.device)
        for chosen in mine.split(HELD_OUT_BATCH):
            with precision.forward():
                logits = net(precision.input(held_out_inputs[chosen])).float()
            correct += (logits.argmax(1) == held_out_labels[chosen]).sum().item()
            total_loss += cross_entropy(logits, held_out_labels[chosen], reduction="sum").item()
        correct, total_loss = world.sum([correct, total_loss])
        return {"accuracy": correct / len(held_out_labels), "loss": total_loss / len(held_out_labels)}

    run.fit(
        model=net,
        optimizers=[optimizer],
        step=step,
        evaluate=evaluate if len(data.held_out) else None,
        samples=len(data.train),
        data=f"{data.name}: {len(data.train):,} images, {len(data.held_out):,} held out",
        data_digest=data.digest(),
    )


def to_device(part: images.Images, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """All images and labels, in the device's memory: loading is then an indexing on the device."""
    return torch.from_numpy(part.images).to(device), torch.from_numpy(part.labels).to(device)


if __name__ == "__main__":
    loop.start("mnist", train)
