"""The GPT recipe: `python -m recipes.gpt.train_torch amp=o2 steps=400 [run=FOLDER]`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from amp_launcher.torch import loop
from amp_launcher.torch.loop import Run
from amp_launcher.torch.supervised import make_step, measure

import torch
from amp_launcher.loop.utilization import TokenWork
from torch import nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from .. import gpt
from ..data import tokens
from ..data.tokens import Text, Tokens
from . import GptSettings

ROPE_BASE = 10_000.0
"""Su et al., "RoFormer" (2021): the slowest pair of features turns once in about so many times 2 pi tokens."""
DEVIATION = 0.02
"""Of initial weights, as GPT-2's; those that add to what a block got are divided by the root of their number."""
KEPT = tuple(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "_scaled_mm",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
)
"""The operations whose outputs train.recompute=selective keeps: those that take long to compute again."""


class RmsNorm(nn.RMSNorm):
    """In the dtype of its weights, which is float32 at o2: of mixed dtypes torch has no fused kernel."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.to(self.weight.dtype))


class Attention(nn.Module):
    """Causal, with rotary positions: [batch, tokens, width] to the same shape."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.qkv = nn.Linear(settings.width, 3 * settings.width, bias=False)
        self.out = nn.Linear(settings.width, settings.width, bias=False)
        self.heads = settings.heads

    def forward(self, inputs: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(inputs).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()  # [batch, heads, tokens, features] each
        attended = scaled_dot_product_attention(
            rotated(query, cosine, sine), rotated(key, cosine, sine), value, is_causal=True
        )
        return self.out(attended.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU (Shazeer, "GLU Variants Improve Transformer", 2020), or squared ReLU (So et al., "Primer", 2021)."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.gated = settings.mlp == "swiglu"
        self.up = nn.Linear(settings.width, settings.hidden * (2 if self.gated else 1), bias=False)
        self.down = nn.Linear(settings.hidden, settings.width, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.gated:
            gate, hidden = self.up(inputs).chunk(2, dim=-1)
            return self.down(silu(gate) * hidden)
        return self.down(relu(self.up(inputs)).square())


class Block(nn.Module):
    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.norm1 = RmsNorm(settings.width, eps=1e-6)
        self.attention = Attention(settings)
        self.norm2 = RmsNorm(settings.width, eps=1e-6)
        self.mlp = Mlp(settings)

    def forward(self, inputs: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        hidden = inputs + self.attention(self.norm1(inputs), cosine, sine)
        return hidden + self.mlp(self.norm2(hidden))


class Net(nn.Module):
    """Token ids [batch, tokens] to logits of the next ones [batch, tokens, vocab_size]."""

    def __init__(self, settings: GptSettings) -> None:
        super().__init__()
        self.embedding = nn.Embedding(settings.vocab_size, settings.width)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = RmsNorm(settings.width, eps=1e-6)
        self.head = nn.Linear(settings.width, settings.vocab_size, bias=False)
        if settings.tied:
            self.head.weight = self.embedding.weight
        self.recompute = settings.recompute
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                adds = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=DEVIATION / (math.sqrt(2 * settings.layers) if adds else 1))
        cosine, sine = rotations(settings.context, settings.width // settings.heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden, count = self.embedding(ids), ids.shape[1]
        positions = self.cosine[:count], self.sine[:count]
        for block in self.blocks:
            hidden = self._run(block, hidden, *positions)
        return self.head(self.norm(hidden))

    def _run(self, block: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        if self.recompute == "none" or not torch.is_grad_enabled():
            return block(*inputs)
        if self.recompute == "full":
            return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
        kept = functools.partial(create_selective_checkpoint_contexts, list(KEPT))
        return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=kept)


def rotations(count: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, float32 of shape [count, features / 2], of each pair's angle at each position."""
    turns = ROPE_BASE ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    angles = torch.outer(torch.arange(count, dtype=torch.float64), turns)
    return angles.cos().float(), angles.sin().float()


def rotated(inputs: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Each pair of features, one of the first half and one of the second, turned by its angle; in the same dtype.

    Cast once: products of mixed dtypes would cast their half-precision side each time, and round their gradients.
    """
    first, second = inputs.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).type_as(inputs)


def train(run: Run) -> None:
    settings, hyper, precision, world = run.settings, run.settings.train, run.precision, run.world
    text = tokens.load(settings.data, hyper)
    net = precision.prepare(Net(hyper).to(world.device))
    model = run.wrap(net)
    matrices = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in net.parameters() if parameter.ndim == 1]
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": hyper.weight_decay}, {"params": norms, "weight_decay": 0.0}],
        lr=hyper.lr,
        betas=(hyper.beta1, hyper.beta2),
        eps=gpt.EPSILON,
        fused=True,
    )
    optimizer = precision.prepare(adam)

    def loss_of(samples: torch.Tensor) -> torch.Tensor:
        """Of one micro-batch [samples, context + 1], in nats a token."""
        logits = model(samples[:, :-1])
        return cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())

    step = make_step(run, model, optimizer, loss_of, hyper.clip)
    run.fit(
        model=net,
        optimizers=[optimizer],
        step=lambda batch: step([tensor.to(world.device, non_blocking=True) for tensor in batch]),
        load=lambda epoch, indices: [world.pinned(sample) for sample in text.train.samples(indices)],
        evaluate=lambda: evaluate(run, net, text),
        samples=len(text.train),
        schedule=gpt.schedule(settings, len(text.train)),
        data=f"{text.name}: {len(text.train.ids):,} tokens, {len(text.held_out.ids):,} held out",
        data_digest=text.digest,
        same_data=True,
        work=TokenWork(per_sample=hyper.context, flops=gpt.flops_per_token(hyper)),
    )


def evaluate(run: Run, net: nn.Module, text: Text) -> dict[str, float]:
    """How often the likeliest next token is right, the loss in nats a token and, where known, in bits a byte."""
    hyper: GptSettings = run.settings.train
    count = min(hyper.held_out, len(text.held_out))
    measured = measure(run, net, _batches(run, text.held_out, count), count * hyper.context)
    if text.bytes_per_token is not None:
        measured["bits_per_byte"] = measured["loss"] / math.log(2) / text.bytes_per_token
    return measured


def _batches(run: Run, unseen: Tokens, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share of `count` held-out samples, spread evenly: ids and those that come next."""
    for indices in run.held_out(count, max(1, run.settings.batch_size // run.settings.accumulate // run.world.size)):
        samples = torch.from_numpy(unseen.samples(indices * len(unseen) // count)).to(run.world.device)
        yield samples[:, :-1], samples[:, 1:]


if __name__ == "__main__":
    loop.start("gpt", train)
