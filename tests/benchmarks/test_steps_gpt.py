from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch

from benchmarks import steps_gpt

TINY = ("train.layers=2", "train.width=32", "train.heads=2", "train.context=32", "batch=4", "train.warmup_steps=2")


@pytest.mark.parametrize(
    "words",
    [("amp=o0",), ("amp=o1",), ("amp=o2",), ("amp=o1", "amp.dtype=float16"), ("amp=o2", "amp.dtype=float16")],
    ids=" ".join,
)
def test_the_hand_written_step_is_the_recipes(text: Path, words: tuple[str, ...]) -> None:
    run, fit = steps_gpt.captured(*TINY, "data=tokens", f"data.dir={text}", *words, "steps=8")
    torch.manual_seed(run.settings.seed)
    by_hand = steps_gpt.by_hand(run)
    batches = [numpy.arange(4) + 4 * number for number in range(6)]
    losses: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number, chosen in enumerate(batches):
        for group in fit["optimizers"][0].param_groups:
            group["lr"] = fit["schedule"](number)
        losses["ours"].append(float(fit["step"](fit["load"](0, chosen[None]))[0]))
        losses["by hand"].append(float(by_hand(chosen)))
    assert losses["ours"] == losses["by hand"]


def test_nanogpts_loop_learns_from_the_same_files(text: Path) -> None:
    run, _ = steps_gpt.captured(*TINY, "data=tokens", f"data.dir={text}", "amp=o1", "accumulate=2", "steps=31")
    step = steps_gpt.nanogpt_loop(run)
    losses = [loss for loss in (step(numpy.arange(2)) for _ in range(31)) if loss is not None]
    assert len(losses) == 4, "read at every tenth step"
    assert losses[-1] < losses[0] - 0.5
