"""Handwritten digits in Lightning: its own checkpoints, CSV logs and handling of SIGTERM."""

import argparse
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, lr, hidden=128):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def on_train_start(self):
        print(f"begins at step {self.global_step}", flush=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % 10 == 0:
            print(f"step {self.global_step} loss {outputs['loss'].item():.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--precision", default=None)
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args()

    L.seed_everything(0)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    trainer = L.Trainer(
        accelerator="cpu",
        precision=args.precision,
        max_steps=args.steps,
        logger=CSVLogger(args.out, name="logs"),
        log_every_n_steps=10,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(dirpath=args.out, save_last=True, every_n_train_steps=50, save_on_exception=True),
        ],
    )
    trainer.fit(Classifier(args.lr), DataLoader(data, batch_size=64, shuffle=True), ckpt_path="last")


if __name__ == "__main__":
    main()
