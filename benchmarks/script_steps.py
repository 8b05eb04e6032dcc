"""The cost of counting the optimizer steps of a user's script: a loop with the wrapper and without it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measure import Measured, Timing, by_turns
from recipes.run_folder import RunFolder
from recipes.torch_.script import TorchWrapper
from recipes.trainer import script
from recipes.trainer.early import EarlyVerdict
from recipes.trainer.step_meter import StepMeter

STEP = 10e-3
"""Seconds of the step in the claim."""
MAY_ADD = 0.01
"""Of such a step."""
BLOCK = 40
"""Steps of one side before the other side runs: fewer than until the wrapper observes again."""
OBSERVED = 4
"""First steps, which are observed or end an observation: they are not counted."""
ROUNDS = 60


def torch_counted(folder: Path) -> Measured:
    torch.set_num_threads(1)
    (folder / "train.py").write_text("")
    step, numbers = _step(), itertools.count(1)
    timings = by_turns(
        {
            "a counted step": lambda: _counted(folder / str(next(numbers)), folder / "train.py", step),
            "the same step": lambda: _block(step),
        },
        ROUNDS,
        warm_up=2,
    )
    counted, plain = timings["a counted step"], timings["the same step"]
    allowed = f"the same step and {MAY_ADD:.0%} of {STEP * 1e3:g} ms"
    return Measured(
        claim=f"counting the steps of a script in torch adds at most {MAY_ADD:.0%} of a step of {STEP * 1e3:g} ms",
        limit=1.0,
        timings={
            "a counted step": counted,
            allowed: Timing(seconds=tuple(seconds + MAY_ADD * STEP for seconds in plain.seconds)),
            "the same step": plain,
        },
        note=f"one layer of 8, one thread, CPU time over blocks of {BLOCK} steps, rows written; observed steps do not "
        f"count; it added {(counted.median - plain.median) * 1e6:.0f} us",
    )


def _counted(run: Path, file: Path, step: Callable[[], None]) -> float:
    (run / "attempts" / "1").mkdir(parents=True)
    started = script.parse(["amp=o0", "device=cpu", f"script={file}", f"run={run}"], "torch")
    wrapper = TorchWrapper(started)
    wrapper.tell_early(EarlyVerdict(started.chosen.settings, 0))
    meter = StepMeter(RunFolder(path=run, attempt=1))
    meter.memory = wrapper.device.peak_memory
    with contextlib.redirect_stdout(None), wrapper.around(meter):
        for _ in range(OBSERVED):
            step()
        return _block(step)


def _block(step: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(BLOCK):
        step()
    return (time.process_time() - began) / BLOCK


def _step() -> Callable[[], None]:
    net, inputs = torch.nn.Linear(8, 8), torch.randn(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    return step
