import random

import numpy
import paddle
from paddle import nn
from paddle.nn import functional as F

from tests.guests import state

state.write_at_exit(globals())


def train(steps=3, loss_of=lambda: F.mse_loss(net(inputs), targets), optimizer=None):
    losses = []
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        (optimizer or sgd).step()
        (optimizer or sgd).clear_grad()
        losses.append(float(loss))
    return losses


random.seed(0)
numpy.random.seed(0)
paddle.seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
inputs, targets = paddle.randn([16, 8]), paddle.randn([16, 1])
sgd = paddle.optimizer.SGD(0.1, parameters=net.parameters())
