"""Handwritten digits as a Hydra application: `model.layers=2 optimizer.lr=0.01`."""

import signal
import sys
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional


def build(cfg: DictConfig) -> nn.Module:
    layers: list[nn.Module] = []
    width = 64
    for _ in range(cfg.model.layers):
        layers += [nn.Linear(width, cfg.model.hidden), nn.ReLU()]
        width = cfg.model.hidden
    return nn.Sequential(*layers, nn.Linear(width, 10))


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg: DictConfig) -> None:
    print(OmegaConf.to_yaml(cfg), flush=True)
    torch.manual_seed(cfg.seed)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = build(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optimizer.lr)
    checkpoint = Path(cfg.checkpoint)
    begin = 0
    if cfg.resume and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
        print(f"resumed at step {begin}", flush=True)

    def save(step):
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint)
        print(f"saved {checkpoint} at step {step}", flush=True)

    step = begin

    def terminate(signum, frame):
        save(step)
        sys.exit(143)

    signal.signal(signal.SIGTERM, terminate)
    for step in range(begin + 1, cfg.steps + 1):
        batch = torch.randint(len(images), (cfg.batch,), generator=torch.Generator().manual_seed(step))
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    save(cfg.steps)


if __name__ == "__main__":
    main()
