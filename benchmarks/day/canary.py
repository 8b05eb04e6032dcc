"""Small training scripts as people write them: `canary.py NAME DEVICE [by-hand]`.

Each prints its losses and, at the end, a digest of its weights. `by-hand` is the same with bfloat16 autocast around
forward and loss. They know nothing of the launcher.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

NAME, DEVICE, BY_HAND = sys.argv[1], sys.argv[2], sys.argv[3:] == ["by-hand"]
STEPS = 12
COMPILED = {"compiled": None, "reduced": "reduce-overhead", "autotuned": "max-autotune-no-cudagraphs"}
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)


def autocast(dtype: torch.dtype = torch.bfloat16) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(DEVICE, dtype=dtype) if BY_HAND else contextlib.nullcontext()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        # Without the dimension of heads CUDA has no fused attention, and computes the products of bfloat16 in float32.
        heads = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.project(inputs).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2)).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(inputs)[0][:, -1])


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(64, 64), nn.GELU()), nn.Linear(64, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(checkpoint(self.body, inputs, use_reentrant=False))


class Unseen(nn.Module):
    """A product by a Triton kernel of its own, of which no dispatcher knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(64, 64) / 8), nn.Linear(64, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(by_triton().apply(inputs, self.weight).relu())


def by_triton() -> Any:
    import triton
    import triton.language as tl

    # Without types: Triton compiles annotations too, and knows no `Any`.
    @triton.jit
    def product(one, other, result, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
        line, column = tl.arange(0, 32), tl.arange(0, size)
        left = tl.load(one + line[:, None] * size + column[None, :], mask=line[:, None] < rows)
        right = tl.load(other + column[:, None] * size + column[None, :])
        tl.store(result + line[:, None] * size + column[None, :], tl.dot(left, right), mask=line[:, None] < rows)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(inputs, weight)
            result = torch.empty(len(inputs), 64, device=inputs.device)
            product[(1,)](inputs.float(), weight.float(), result, len(inputs), 64)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, weight = ctx.saved_tensors
            return gradients[0] @ weight.t(), inputs.float().t() @ gradients[0]

    return Product


def net_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    if name in ("convolutions", "channels_last"):
        layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8 * 12 * 12, 1)), (8, 3, 16, 16)
    if name == "attention":
        return Attention(), (8, 16, 32)
    if name == "lstm":
        return Recurrent(), (8, 16, 32)
    if name == "recomputed":
        return Recomputed(), (32, 64)
    if name == "triton":
        return Unseen(), (32, 64)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)), (32, 64)


def train() -> None:
    net, shape = net_of(NAME)
    net = net.to(DEVICE, memory_format=torch.channels_last) if NAME == "channels_last" else net.to(DEVICE)
    inputs, targets = torch.randn(shape), torch.randn(shape[0], 1)
    forward: Any = torch.compile(net, mode=COMPILED[NAME]) if NAME in COMPILED else net
    if NAME == "graphed":
        forward = torch.cuda.make_graphed_callables(net, (torch.randn(shape, device=DEVICE),))
    if NAME == "fused":
        train_scaled(net, inputs.to(DEVICE), targets.to(DEVICE))
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        with profiled():
            for batch, labels in batches(inputs, targets):
                optimizer.zero_grad()
                with autocast(), its_own():
                    loss = F.mse_loss(forward(batch).float(), labels) + penalty(net)
                loss.backward()
                optimizer.step()
                print(loss.item().hex())
    digest = hashlib.sha256()
    for weight in net.state_dict().values():
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    print(digest.hexdigest())


def its_own() -> contextlib.AbstractContextManager[object]:
    """An autocast of the script's own, with a cache of its own."""
    if NAME == "inner":
        return torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=True)
    return contextlib.nullcontext()


def profiled() -> contextlib.AbstractContextManager[object]:
    return torch.profiler.profile() if NAME == "profiled" else contextlib.nullcontext()


def penalty(net: nn.Module) -> Any:
    """Of a decomposition, whose kernels multiply matrices too."""
    if NAME != "decomposed":
        return 0.0
    weight = next(net.parameters()).float()
    return torch.linalg.slogdet(weight @ weight.t() + torch.eye(64, device=DEVICE)).logabsdet * 1e-3


def batches(inputs: torch.Tensor, targets: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if NAME == "loaded":
        data = torch.utils.data.TensorDataset(inputs.repeat(STEPS, 1), targets.repeat(STEPS, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=len(inputs), num_workers=2, pin_memory=DEVICE == "cuda")
        for batch, labels in loader:
            yield batch.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        return
    inputs, targets = inputs.to(DEVICE), targets.to(DEVICE)
    for _ in range(STEPS):
        yield inputs, targets


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


if __name__ == "__main__":  # what loads data may start this file anew
    train()
