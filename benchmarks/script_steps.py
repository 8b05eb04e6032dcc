"""The cost of the wrapper around a user's script in torch: its start and its steps, with it and without it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import torch

from amp_launcher.around import wrap as script
from amp_launcher.around.early import EarlyVerdict
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.run_folder import RunFolder
from amp_launcher.torch.wrapper import TorchWrapper
from benchmarks.measure import Measured, Timing, by_turns, command
from benchmarks.places import PYTHON, environment

STEP = 10e-3
"""Seconds of the step in the claim."""
MAY_ADD = 0.01
"""Of such a step."""
BLOCK = 40
"""Steps of one side before the other side runs: fewer than until the wrapper observes again."""
OBSERVED = 30
"""First steps, among which some are observed or end an observation: they are not counted."""
ROUNDS = 20
LAYERS = 20
"""Modules that a step calls."""
START = 2.0
"""Seconds that a start may take longer."""
STARTS = 10


def torch_counted(folder: Path) -> Measured:
    return _measured(folder, "o0", compiled=False)


def torch_counted_compiled(folder: Path) -> Measured:
    return _measured(folder, "o0", compiled=True)


def torch_cast(folder: Path) -> Measured:
    return _measured(folder, "o1", compiled=False)


def torch_cast_compiled(folder: Path) -> Measured:
    return _measured(folder, "o1", compiled=True)


def torch_start(folder: Path) -> Measured:
    """Of a script that imports torch and ends."""
    (folder / "train.py").write_text("import torch\n")
    words = ["amp=o1", "device=cpu", "require_proof=false", f"script={folder / 'train.py'}"]
    environ = environment(folder)
    cases = {
        "the script in the wrapper": command([PYTHON, "-m", "amp_launcher.torch.script", *words], folder, environ),
        "the script": command([PYTHON, str(folder / "train.py")], folder, environ),
    }
    timings = by_turns(cases, STARTS)
    ours, plain = timings.values()
    return Measured(
        claim=f"the wrapper of a script in torch adds at most {START:g} s to its start",
        limit=1.0,
        timings={
            "the script in the wrapper": ours,
            f"the script and {START:g} s": Timing(seconds=tuple(seconds + START for seconds in plain.seconds)),
            "the script": plain,
        },
        note=f"a script that imports torch; it added {ours.median - plain.median:.2f} s",
    )


def _measured(folder: Path, level: str, *, compiled: bool) -> Measured:
    torch.set_num_threads(1)
    (folder / "train.py").write_text("")
    numbers = itertools.count(1)
    step, plain_step = _step(compiled=compiled), _step(compiled=compiled, autocast=level == "o1")
    timings = by_turns(
        {
            "a step": lambda: _wrapped(folder / str(next(numbers)), folder / "train.py", step, level),
            "the same step": lambda: _plain(plain_step),
        },
        ROUNDS,
        warm_up=2,
    )
    ours, plain = timings["a step"], timings["the same step"]
    allowed = f"the same step and {MAY_ADD:.0%} of {STEP * 1e3:g} ms"
    what = f"a {'compiled ' * compiled}step of a script in torch at {level}"
    return Measured(
        claim=f"the wrapper adds at most {MAY_ADD:.0%} of {STEP * 1e3:g} ms to {what}",
        limit=1.0,
        timings={
            what: ours,
            allowed: Timing(seconds=tuple(seconds + MAY_ADD * STEP for seconds in plain.seconds)),
            "the same step": plain,
        },
        note=f"{LAYERS} layers of 8, one thread, CPU time over blocks of {BLOCK} steps, rows written; observed "
        f"steps do not count{'; the same step has autocast written by hand' * (level == 'o1')}; it added "
        f"{(ours.median - plain.median) * 1e6:.0f} us",
    )


def _wrapped(run: Path, file: Path, step: Callable[[], None], level: str) -> float:
    (run / "attempts" / "1").mkdir(parents=True)
    words = [f"amp={level}", "device=cpu", "require_proof=false", f"script={file}", f"run={run}"]
    wrapper = TorchWrapper(script.parse(words, "torch"))
    wrapper.tell_early(EarlyVerdict(script.parse(words, "torch").chosen.settings, 0, resumed=False))
    meter = StepMeter(RunFolder(path=run, attempt=1))
    meter.memory = wrapper.device.peak_memory
    with contextlib.redirect_stdout(None), wrapper.around(meter):
        return _plain(step)


def _plain(step: Callable[[], None]) -> float:
    for _ in range(OBSERVED):
        step()
    return _block(step)


def _block(step: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(BLOCK):
        step()
    return (time.process_time() - began) / BLOCK


def _step(*, compiled: bool = False, autocast: bool = False) -> Callable[[], None]:
    net, inputs = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS))), torch.randn(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    called = torch.compile(net) if compiled else net

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = called(inputs).square().mean()
        loss.backward()
        optimizer.step()

    return step
