"""A user's own script in Paddle: `python -m recipes.paddle_.script amp=o1 script=train.py -- --lr 0.1`.

Nothing is applied around it. What it applies itself, by `Precision.from_env()` or otherwise, is observed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import paddle

from recipes import script
from recipes.paddle_ import devices
from recipes.paddle_.observe.script_observer import ScriptObserver
from recipes.paddle_.precision import Precision
from recipes.trainer import script as shared
from recipes.trainer.step_meter import StepMeter
from recipes.trainer.wrapper import Started, Wrapper


class PaddleWrapper(Wrapper):
    """`recipes.trainer.wrapper.Wrapper` in Paddle."""

    precision: Precision
    observer: ScriptObserver

    def __init__(self, started: Started) -> None:
        settings = started.chosen.settings
        kind = devices.resolve(settings.device)
        self.device = devices.PaddleDevice(kind)
        paddle.set_device("gpu:0" if kind == "cuda" else "cpu")
        self.own = script.by_script(settings.train, started.source)
        self.mode = script.resolve(
            settings,
            started.source,
            device=kind,
            capability=devices.capability_of(kind),
            environ=os.environ,
        )
        self.precision = Precision.apply(self.mode)
        self.observer = ScriptObserver(self.precision)

    @contextlib.contextmanager
    def around(self, meter: StepMeter) -> Iterator[None]:
        with self.observer.observing(meter), self.noticing(Precision):
            yield

    def give_way(self) -> None:
        pass


if __name__ == "__main__":
    sys.exit(shared.main("paddle", sys.argv[1:], PaddleWrapper))
