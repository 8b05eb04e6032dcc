"""Handwritten digits with accelerate: its checkpoints every few steps, its launcher's variables."""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--max_train_steps", type=int, default=100)
    parser.add_argument("--checkpointing_steps", type=int, default=20)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], default=None)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--output_dir", type=Path, default=Path("out"))
    parser.add_argument("--resume_from_checkpoint", default=None, help="a folder, or latest")
    args = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True
    )
    set_seed(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    resume = args.resume_from_checkpoint
    if resume == "latest":
        saved = sorted(args.output_dir.glob("step_*"), key=lambda folder: int(folder.name.split("_")[1]))
        resume = saved[-1] if saved else None
    if resume:
        accelerator.load_state(str(resume))
        step = int(Path(resume).name.split("_")[1])
        accelerator.print(f"resumed at step {step}", flush=True)

    while step < args.max_train_steps:
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % args.checkpointing_steps == 0:
                accelerator.save_state(str(args.output_dir / "unfinished"))
                (args.output_dir / "unfinished").rename(args.output_dir / f"step_{step}")
            if step == args.max_train_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
