"""A user's own script in Paddle: `python -m amp_launcher.paddle.script amp=o1 script=train.py -- --lr 0.1`.

Nothing is applied around it. What it applies itself, by `Precision()` or otherwise, is observed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import paddle

from amp_launcher.around import random_draws
from amp_launcher.around import wrap as shared
from amp_launcher.around.once_imported import hidden
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.wrapper import Started, Wrapper
from amp_launcher.paddle import devices
from amp_launcher.paddle.observe.script_observer import ScriptObserver
from amp_launcher.paddle.precision import Precision, precision_of
from amp_launcher.paddle.precision.mechanisms import mechanism_of


class PaddleWrapper(Wrapper):
    """`amp_launcher.around.wrapper.Wrapper` in Paddle."""

    precision: Precision
    observer: ScriptObserver

    def __init__(self, started: Started) -> None:
        kind = devices.resolve(started.chosen.settings.device)
        self.device = devices.PaddleDevice(kind)
        paddle.set_device("gpu:0" if kind == "cuda" else "cpu")
        super().__init__(started, kind, devices.capability_of(kind))
        self.precision = precision_of(mechanism_of(self.mode))
        self.observer = ScriptObserver(self.precision)

    @contextlib.contextmanager
    def around(self, meter: StepMeter) -> Iterator[None]:
        with self.observer.observing(meter), hidden("paddle", lambda library: random_draws.draw_again()):
            yield

    def give_way(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(shared.main("paddle", sys.argv[1:], PaddleWrapper))
