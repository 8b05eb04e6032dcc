"""Runs to be exported, and the verb as a person types it."""

import json
from pathlib import Path

from launcher.__main__ import main
from launcher.runs import store

from .. import run_folders
from ..run_folders import NAME, finished, metrics

BEGAN = 1767323045.0
"""When the first attempt of `run_folders.finished` started."""
SETTINGS = {"amp": {"level": "o2", "dtype": "auto", "allow": []}, "batch": 128, "train": {"lr": 0.5, "clip": None}}


def row(step, **more):
    """A row of metrics.jsonl."""
    values = {
        "epoch": 0,
        "loss": 1 / step,
        "lr": 0.5,
        "seconds": 1.0,
        "samples_per_second": 128.0,
        "loss_scale": 1024.0,
    }
    return {"step": step, **values, "skipped_total": 0, "time": BEGAN + step, **more}


def evaluation(step):
    return {"event": "eval", "step": step, "epoch": 0, "accuracy": step / 100, "time": BEGAN + step}


def run(root: Path, name=NAME, steps=4, plan=None, **result) -> Path:
    """A run that ended after so many steps, with an evaluation at the last."""
    folder = finished(root, name)
    values = {
        "schema": 2,
        "name": "mine",
        "recipe": "mnist",
        "framework": "torch",
        "settings": SETTINGS,
        "words": ["amp=o2"],
    }
    store.write_json(folder / "plan.json", {**values, **(plan or {})})
    metrics(folder, [*map(row, range(1, steps + 1)), evaluation(steps)])
    store.write_json(folder / "result.json", run_folders.result(attempts=1, **result))
    return folder


def export(*words) -> int:
    return main(["export", *map(str, words)])


def record(folder) -> dict:
    """What trackers.json says was sent to the one place that it names."""
    (entry,) = json.loads((folder / "trackers.json").read_text())["sent"].values()
    return entry
