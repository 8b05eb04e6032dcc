"""Handwritten digits in plain torch: one process, or several under torchrun; saves on SIGTERM and resumes."""

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--hidden", type=int, default=128)
parser.add_argument("--data", type=Path, help="a .pt file of images and labels; default: the digits of scikit-learn")
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--resume", choices=["auto", "never"], default="never")
args = parser.parse_args()

stopping = False


def stop(signum, frame):
    global stopping
    stopping = True


signal.signal(signal.SIGTERM, stop)
torch.manual_seed(0)

ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    distributed.init_process_group("gloo")
rank = distributed.get_rank() if ranks > 1 else 0

if args.data:
    images, labels = torch.load(args.data)
else:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)

model = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
checkpoint = args.out / "ckpt.pt"
begin = 0
if args.resume == "auto" and checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["step"]
    print(f"resumed at step {begin}", flush=True)
net = DistributedDataParallel(model) if ranks > 1 else model


def save(step):
    if rank:
        return
    args.out.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, f"{checkpoint}.new")
    os.replace(f"{checkpoint}.new", checkpoint)
    print(f"saved {checkpoint} at step {step}", flush=True)


def stop_wanted():
    """Ranks receive the signal at different steps; all of them stop at the same one."""
    if ranks == 1:
        return stopping
    wanted = torch.tensor(int(stopping))
    distributed.all_reduce(wanted, distributed.ReduceOp.MAX)
    return bool(wanted)


for step in range(begin + 1, args.steps + 1):
    batch = torch.randint(len(images), (ranks, args.batch), generator=torch.Generator().manual_seed(step))[rank]
    loss = functional.cross_entropy(net(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step % 10 == 0 or step == begin + 1):
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    if stop_wanted():
        save(step)
        sys.exit(0)
save(args.steps)
if ranks > 1:
    distributed.destroy_process_group()
