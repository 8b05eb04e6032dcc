from __future__ import annotations

import numpy
import pytest
import torch

from benchmarks import sharded, steps_gpt

TINY = ("train.layers=1", "train.width=32", "train.heads=2", "train.context=32", "batch=4", "train.warmup_steps=2")


def test_the_hand_written_sharded_step_is_the_recipes() -> None:
    run, fit = steps_gpt.captured("amp=o2", *TINY, *sharded.WORDS, "steps=8")
    try:
        torch.manual_seed(run.settings.seed)
        by_hand = sharded.by_hand(run)
        for number in range(4):
            for group in fit["optimizers"][0].param_groups:
                group["lr"] = fit["schedule"](number)
            chosen = numpy.arange(4) + 4 * number
            ours = fit["step"](fit["load"](0, chosen[None]))[0]
            assert float(ours) == pytest.approx(float(by_hand(chosen)), rel=1e-4)
    finally:
        run.world.leave()
