import random

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from tests.guests import state

state.write_at_exit(globals())


def by_hand():
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=BY_HAND) if BY_HAND else state.nothing()


def net_of(width=8):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))


def train(steps=3, loss_of=lambda: F.mse_loss(net(inputs), targets), optimizer=None):
    losses = []
    for _ in range(steps):
        (optimizer or sgd).zero_grad()
        with by_hand():
            loss = loss_of()
        loss.backward()
        (optimizer or sgd).step()
        losses.append(loss.item())
    return losses


random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)
net = net_of()
inputs, targets = torch.randn(16, 8), torch.randn(16, 1)
square = torch.randn(8, 8)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
