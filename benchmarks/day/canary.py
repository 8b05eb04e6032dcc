"""Small training scripts as people write them: `canary.py NAME DEVICE [by-hand]`.

Each prints its losses and, at the end, a digest of its weights. `by-hand` is the same with bfloat16 autocast around
forward and loss. They know nothing of the launcher.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

NAME, DEVICE, BY_HAND = sys.argv[1], sys.argv[2], sys.argv[3:] == ["by-hand"]
STEPS = 12
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)


def autocast(dtype: torch.dtype = torch.bfloat16) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(DEVICE, dtype=dtype) if BY_HAND else contextlib.nullcontext()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(inputs).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(query, key, value)).mean(1)


def net_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name == "convolutions":
        layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8 * 12 * 12, 1)), (8, 3, 16, 16)
    if name == "attention":
        return Attention(), (8, 16, 32)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)), (32, 64)


def train() -> None:
    net, shape = net_of(NAME)
    net = net.to(DEVICE)
    inputs, targets = torch.randn(shape).to(DEVICE), torch.randn(shape[0], 1).to(DEVICE)
    if NAME == "compiled":
        forward = torch.compile(net)
    else:
        forward = net
    if NAME == "fused":
        train_scaled(net, inputs, targets)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            with autocast():
                if NAME == "inner":  # an autocast of the script's own, with a cache of its own
                    with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=True):
                        loss = F.mse_loss(forward(inputs).float(), targets)
                else:
                    loss = F.mse_loss(forward(inputs).float(), targets)
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
    digest = hashlib.sha256()
    for weight in net.state_dict().values():
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    print(digest.hexdigest())


def train_scaled(net: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    """float16 with a loss scale of the script's own, a fused optimizer with momentum, and an overflow at first."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=DEVICE == "cuda")
    scaler = torch.amp.GradScaler(DEVICE, init_scale=256.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = F.mse_loss(net(inputs if step else inputs * float("inf")).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(loss.item().hex())


train()
