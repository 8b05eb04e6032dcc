"""A user's own script in torch: `python -m recipes.torch_.script amp=o1 script=train.py -- --lr 0.1`.

What can be applied around it is applied, which is autocast in bfloat16; what it applies itself, by
`Precision.from_env()` or in its own way, is left to it. Both are observed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from recipes import levels, script
from recipes.torch_ import hardware, profiling
from recipes.torch_.precision import Precision
from recipes.torch_.recorder import TorchDevice
from recipes.torch_.script_witness import ScriptWitness
from recipes.torch_.spec import capability_of, device_from
from recipes.trainer import script as shared
from recipes.trainer.outcome import Mode
from recipes.trainer.profiling import Profiling
from recipes.trainer.script import Started
from recipes.typed import SettingsError


class TorchWrapper(shared.Wrapper):
    """`recipes.trainer.script.Wrapper` in torch."""

    def __init__(self, started: Started) -> None:
        settings = started.chosen.settings
        self._device = device_from(settings.device, os.environ)
        capability = capability_of(self._device)
        dtype = levels.resolve_dtype(settings.amp.level, settings.amp.dtype, self._device.type, capability)
        row = script.mechanism(settings, dtype, self._device.type, started.source)
        if row.hole:
            raise SettingsError(row.hole, "amp")
        self._own = script.by_script(settings.train, started.source)
        self._asked = False
        self._precision = Precision.of(settings.amp, settings.loss_scale, self._device, tf32=settings.tf32)
        profiler = profiling.make(settings.profile, self._device, int(os.environ.get("RANK", "0")))
        self._profiling = Profiling(settings.profile, profiler, started.chosen.run)
        self._profiling.whenever()
        self._witness = ScriptWitness(self._precision, self._profiling)
        self._around = contextlib.ExitStack()
        self._mechanism = row.mechanism
        self.mode = Mode(
            dtype=dtype,
            mechanism=row.mechanism,
            loss_scale=self._precision.loss_scale,
            tf32=self._precision.tf32,
            device=self._device.type,
            capability=capability,
        )

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        with self._witness.watching(), self._around, self._noticing():
            if self._mechanism == "autocast_around":
                # Its cache of cast weights is emptied only where the outermost autocast ends, which here is the end of
                # the script: with it, every step would compute with the weights of the first.
                autocast = torch.autocast(self._device.type, dtype=self._precision.dtype, cache_enabled=False)
                self._around.enter_context(autocast)
            yield

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Whether the script asks for its precision: then nothing is applied around it any more."""
        original = Precision.from_env

        def from_env(*args: Any, **kwargs: Any) -> Precision:
            self._around.close()
            self._asked = True
            made = original(*args, **kwargs)
            self._precision = self._witness.precision = made
            return made

        Precision.from_env = staticmethod(from_env)  # type: ignore[method-assign]
        try:
            yield
        finally:
            Precision.from_env = staticmethod(original)  # type: ignore[method-assign]

    def reports(self) -> list[dict[str, Any]]:
        return self._witness.reports

    def mechanism(self) -> str:
        if self._asked:
            return self._precision.mechanism
        return "script" if self._own else self._mechanism

    def steps(self) -> int:
        return self._witness.steps

    def profile(self) -> dict[str, Any]:
        return self._profiling.found

    def peak_memory(self) -> int:
        return TorchDevice(self._device).peak_memory()

    def versions(self) -> dict[str, str | None]:
        return hardware.versions()

    def hardware(self) -> dict[str, str | None]:
        return hardware.hardware(self._device)


if __name__ == "__main__":
    sys.exit(shared.main("torch", sys.argv[1:], TorchWrapper))
