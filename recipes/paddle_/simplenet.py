"""The simplenet recipe: `python -m recipes.paddle_.simplenet amp=o2 [train.width=256 batch=64] [run=FOLDER]`."""

from __future__ import annotations

import paddle
from paddle import nn
from paddle.nn.functional import mse_loss

from recipes.data import pairs
from recipes.paddle_ import loop
from recipes.paddle_.loop import Run
from recipes.paddle_.precision import StepOutcome
from recipes.simplenet import STEPS_PER_EPOCH, SimplenetSettings


class Net(nn.Layer):
    """Linear layers with nothing between them: [batch, width] to [batch, width]. Paddle draws them by Glorot itself."""

    def __init__(self, settings: SimplenetSettings) -> None:
        super().__init__()
        self.linears = nn.LayerList([nn.Linear(settings.width, settings.width) for _ in range(settings.layers)])

    def forward(self, inputs: paddle.Tensor) -> paddle.Tensor:
        for linear in self.linears:
            inputs = linear(inputs)
        return inputs


def train(run: Run) -> None:
    settings, hyper, precision = run.settings, run.settings.train, run.precision
    data = pairs.load(settings.seed, STEPS_PER_EPOCH * settings.batch, hyper.width)
    inputs, labels = paddle.to_tensor(data.inputs), paddle.to_tensor(data.labels)

    net = Net(hyper)
    sgd = paddle.optimizer.SGD(learning_rate=hyper.lr, parameters=net.parameters())
    net, optimizer = precision.decorate(net, sgd)

    def step(batch: paddle.Tensor) -> tuple[paddle.Tensor, StepOutcome]:
        """One optimizer step on samples whose indices have shape [micro-batches, samples in each]."""
        total = paddle.zeros([])
        for chosen in batch:
            with precision.forward():
                loss = mse_loss(net(inputs[chosen]).astype("float32"), labels[chosen]) / len(batch)
            precision.backward(loss)
            total += loss.detach()
        outcome = precision.step(optimizer)
        precision.update()
        optimizer.clear_grad()
        return total, outcome

    run.fit(
        model=net,
        optimizer=optimizer,
        step=step,
        samples=len(data),
        data=f"random numbers: {len(data):,} pairs of {hyper.width:,}",
        data_digest=data.digest(),
    )


if __name__ == "__main__":
    loop.start("simplenet", train)
