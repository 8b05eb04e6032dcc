"""A script of our own in nanoGPT's shape, and the lines to change in it for the calls of a precision.

Its shape: one file without functions around the loop, a GradScaler and an autocast, two groups of weight decay, tied
embeddings, accumulation, clipping, compile, DistributedDataParallel, and `ckpt.pt` with the two `state_dict()`.
benchmarks/scripts/scripts.yaml has the changes of nanoGPT's own train.py.
"""

from __future__ import annotations

SCRIPT = """\
import os, sys
from contextlib import nullcontext
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

last, out_dir, *flags = sys.argv[1:]
resume, compile, ddp = "resume" in flags, "compile" in flags, int(os.environ.get("WORLD_SIZE", "1")) > 1
dtype, accumulation, grad_clip, save_at = "float32", 2, 1.0, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.projection = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.attention(self.norm(x)).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(heads.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(48, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, 48, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(torch.arange(16, device=tokens.device))
        logits = self.head(self.blocks(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self):
        decayed = [parameter for parameter in self.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in self.parameters() if parameter.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))


if ddp:
    init_process_group("gloo")
rank = int(os.environ.get("RANK", "0")) if ddp else 0
ctx = nullcontext() if dtype == "float32" else torch.autocast("cpu", dtype=getattr(torch, dtype))


def get_batch(step, micro_step):
    torch.manual_seed(1337 + 100 * step + 10 * micro_step + rank)
    tokens = torch.arange(17) * torch.randint(1, 5, (8, 1)) % 48
    return tokens[:, :-1], tokens[:, 1:]


torch.manual_seed(1337)
step = 0
model = GPT()
if resume:
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), weights_only=True)
    model.load_state_dict({name.removeprefix("_orig_mod."): value for name, value in checkpoint["model"].items()})
    step = checkpoint["step"]
scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"))
optimizer = model.configure_optimizers()
if resume:
    optimizer.load_state_dict(checkpoint["optimizer"])
if compile:
    model = torch.compile(model, backend="aot_eager")
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    model.eval()
    with ctx:
        logits, loss = model(*get_batch(step, 5))
    model.train()
    return loss.item()


while step < int(last):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * (1 - step / 20)
    if step == save_at and rank == 0 and not resume:
        os.makedirs(out_dir, exist_ok=True)
        saved = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(saved, os.path.join(out_dir, "ckpt.pt"))
    if step % save_at == 0 and not ddp:
        print("held out", step, estimate_loss().hex())
    for micro_step in range(accumulation):
        if ddp:
            model.require_backward_grad_sync = micro_step == accumulation - 1
        with ctx:
            logits, loss = model(*get_batch(step, micro_step))
            loss = loss / accumulation
        scaler.scale(loss).backward()
    if grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"rank {rank} step {step} loss {loss.item().hex()}", flush=True)
    step += 1
if ddp:
    destroy_process_group()
"""

CHANGES = [
    ("import torch\n", "import torch\nfrom amp_launcher.torch import Precision\n"),
    (
        'ctx = nullcontext() if dtype == "float32" else torch.autocast("cpu", dtype=getattr(torch, dtype))\n',
        "ctx = precision = Precision()\n",
    ),
    ('scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"))\n', ""),
    ("if compile:\n", "model, optimizer = precision.prepare(model, optimizer)\nif compile:\n"),
    ("scaler.scale(loss).backward()", "precision.backward(loss)"),
    ("    if grad_clip != 0.0:\n", ""),
    ("        scaler.unscale_(optimizer)\n", ""),
    ("        torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)\n", ""),
    ("    scaler.step(optimizer)\n", "    precision.step(optimizer, clip=grad_clip or None)\n"),
    ("    scaler.update()\n", ""),
]
"""Each a text that is there once, and what takes its place."""


def changed() -> str:
    text = SCRIPT
    for old, new in CHANGES:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
