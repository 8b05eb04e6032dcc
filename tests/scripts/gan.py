"""A GAN of handwritten digits with two optimizers, in plain torch."""

import argparse
import signal
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh())
critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=args.lr, betas=(0.5, 0.999))
parts = {"generator": generator, "critic": critic, "optimizer_g": optimizer_g, "optimizer_d": optimizer_d}
checkpoint = args.out / "gan.pt"
begin = 0
if args.resume and checkpoint.exists():
    saved = torch.load(checkpoint)
    for name, part in parts.items():
        part.load_state_dict(saved[name])
    begin = saved["step"]
    print(f"resumed at step {begin}", flush=True)


def save(step):
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, checkpoint)
    print(f"saved {checkpoint} at step {step}", flush=True)


stopping = []
signal.signal(signal.SIGTERM, lambda signum, frame: stopping.append(signum))
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(begin + 1, args.steps + 1):
    real = images[torch.randint(len(images), (64,))]
    fake = generator(torch.randn(64, 16))

    optimizer_d.zero_grad()
    loss_d = bce(critic(real), ones) + bce(critic(fake.detach()), zeros)
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = bce(critic(fake), ones)
    loss_g.backward()
    optimizer_g.step()

    if step % 10 == 0:
        distance = (real.mean(0) - fake.detach().mean(0)).abs().mean()
        losses = f"critic {loss_d.item():.4f} generator {loss_g.item():.4f}"
        print(f"step {step} loss {distance.item():.4f} {losses}", flush=True)
    if stopping:
        save(step)
        sys.exit(0)
save(args.steps)
