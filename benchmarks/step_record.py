"""`verify.record=true`: steps of gpt that are recorded, against the same steps unrecorded."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch

from amp_launcher import metrics
from amp_launcher.recipes.gpt import train_torch as gpt
from amp_launcher.step_record import path_of
from amp_launcher.torch import loop
from benchmarks.measure import Measured, Timing

ROUNDS, STEPS, WARM = 6, 24, 4
WORDS = ("amp=o2", "data=stdlib", "batch=16", "train.layers=4", "train.width=128", "train.heads=4", "train.context=128")


def cost(folder: Path) -> Measured:
    torch.set_num_threads(1)
    ours, theirs = "step with verify.record=true", "step without"
    seconds: dict[str, list[float]] = {ours: [], theirs: []}
    for turn in range(ROUNDS):
        for name in (ours, theirs) if turn % 2 else (theirs, ours):
            seconds[name].append(_seconds(folder / f"{turn}-{name == ours}", name == ours))
    size = path_of(folder / "0-True", 0).stat().st_size / STEPS
    return Measured(
        claim="recording digests of all tensors at most 1.15 times the step",
        limit=1.15,
        timings={name: Timing(seconds=tuple(times)) for name, times in seconds.items()},
        note=f"gpt, 4 layers of 128, AdamW at o2, 2,048 tokens a step, one thread; {size:,.0f} bytes of record a step",
    )


def _seconds(run: Path, recorded: bool) -> float:
    """Seconds of one step: the mean after the warm-up, with the time between steps."""
    words = [*WORDS, f"steps={STEPS}", "checkpoint.every=0", "train.held_out=1", f"run={run}"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = loop.main("gpt", gpt.train, [*words, f"verify.record={str(recorded).lower()}"])
    assert code == loop.DONE
    times = [row["time"] for row in metrics.read(run / "metrics.jsonl") if "event" not in row]
    return (times[-2] - times[WARM]) / (STEPS - 2 - WARM)  # the last step is observed
