"""A user's own script in Paddle: `python -m recipes.paddle_.script amp=o1 script=train.py -- --lr 0.1`.

Nothing is applied around it: what it applies itself, by `Precision.from_env()` or in its own way, is observed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import paddle

from recipes import script
from recipes.paddle_ import devices
from recipes.paddle_.observe.script_observer import ScriptWitness
from recipes.paddle_.precision.base import Precision
from recipes.precision import resolved
from recipes.trainer import script as shared
from recipes.trainer.result_fields import Mode
from recipes.trainer.wrapper import Started, Wrapper
from recipes.typed import SettingsError


class PaddleWrapper(Wrapper):
    """`recipes.trainer.wrapper.Wrapper` in Paddle."""

    precision: Precision
    witness: ScriptWitness

    def __init__(self, started: Started) -> None:
        settings = started.chosen.settings
        if settings.profile.tool == "framework":
            raise SettingsError("profile=framework records Paddle nowhere; say profile=nsys", "profile")
        self._kind = devices.resolve(settings.device)
        paddle.set_device("gpu:0" if self._kind == "cuda" else "cpu")
        capability = devices.capability_of(self._kind)
        dtype = resolved.resolve_dtype(settings.amp.level, settings.amp.dtype, self._kind, capability, "paddle")
        row = script.support(settings, dtype, self._kind, started.source)
        if row.unsupported:
            raise SettingsError(row.unsupported, "amp")
        self.own = script.by_script(settings.train, started.source)
        self.precision = Precision.of(settings.amp, settings.loss_scale, self._kind, tf32=settings.tf32)
        self.witness = ScriptWitness(self.precision)
        self.mode = Mode(
            dtype=dtype,
            mechanism=row.mechanism,
            loss_scale=self.precision.loss_scale,
            tf32=self.precision.tf32,
            device=self._kind,
            capability=capability,
        )

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        with self.witness.watching(), self.noticing(Precision):
            yield

    def give_way(self) -> None:
        pass

    def steps(self) -> int | None:
        return None if self.witness.static else self.witness.steps

    def peak_memory(self) -> int:
        return devices.PaddleDevice(self._kind).peak_memory()

    def versions(self) -> dict[str, str | None]:
        return devices.versions()

    def hardware(self) -> dict[str, str | None]:
        return devices.hardware(self._kind)


if __name__ == "__main__":
    sys.exit(shared.main("paddle", sys.argv[1:], PaddleWrapper))
