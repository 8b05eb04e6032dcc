"""Precision and observation around a user's own script in torch.

Autocast in bfloat16 is applied around it, other modes are handed to its library where that has a switch, and what the
script applies itself, by `Precision()` or in its own way, is left to it. All of it is observed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from amp_launcher.around import script
from amp_launcher.around.early import EarlyVerdict
from amp_launcher.around.once_imported import hidden
from amp_launcher.around.rank_reports import Reports
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.around.wrapper import Started, Wrapper
from amp_launcher.loop.profiling import Profiling
from amp_launcher.torch import flight_recorder, profiling
from amp_launcher.torch.autocast_around import AutocastAround
from amp_launcher.torch.hardware import TorchDevice
from amp_launcher.torch.libraries.attached import attached
from amp_launcher.torch.nvml import device_and_capability
from amp_launcher.torch.observe.script_observer import ScriptObserver
from amp_launcher.torch.observe.step_counter import StepCounter
from amp_launcher.torch.precision.base import Mechanism
from amp_launcher.torch.precision.tf32 import switch_tf32
from amp_launcher.torch.spawned_ranks import SpawnedRanks
from amp_launcher.world import cgroup_limits
from amp_launcher.world.world import rank_and_size

THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables that torch reads once, when it is loaded; the first one counts."""

SWITCHED_OFF = (
    " (the script calls its model in an autocast of its own that is off, as by autocast(enabled=False), which wins "
    "over the launcher's: switch it on by the script's own argument, and say train.precision=script; where that has no "
    "effect on this device, only amp=o0 is left)"
)
CALLS_IN_BACKWARD = (
    " (the script calls its model in backward, where the launcher's autocast around the forward does not hold: switch "
    "mixed precision on by its library's own argument, or write torch.autocast around that call, and say "
    "train.precision=script)"
)
BEGAN_LATE = (
    " (autocast begins where a step calls its first module, and products were computed before: write model(x) for "
    "model.forward(x), or torch.autocast around what uses weights without a module, and say train.precision=script)"
)
MIXED_UP = (
    "amp={level} is torch.autocast around the script: under it layers give {half} beside float32 weights and inputs, "
    "as they would by hand; cast what meets their results, as by other.to(output.dtype), or say amp=o0"
)
NO_KERNEL = (
    "amp={level} is torch.autocast around the script, and oneDNN has no kernel of this layer in {half} on this CPU, by "
    "hand either: call the layer in torch.autocast('cpu', enabled=False) on inputs.float(), or say amp=o0"
)
_OF_DTYPES = re.compile(r"BFloat16|Half|same (d?type|scalar type)|self\.dtype")
MADE_NONE = (
    " (its text has a Precision, which would apply the mode, and it made none: make it in every case, or say "
    "train.precision=launcher for what can be applied around the script)"
)


class TorchWrapper(Wrapper):
    """`amp_launcher.around.wrapper.Wrapper` in torch."""

    observer: ScriptObserver
    profiling: Profiling

    def __init__(
        self, started: Started, *, spawned: int | None = None, as_rank: Callable[..., Any] | None = None
    ) -> None:
        """`spawned` is the number of a rank that the script starts itself, where this is in one. `as_rank` is
        `SpawnedRank`, where the ranks that the script starts itself are to be observed."""
        settings = started.chosen.settings
        self._device, capability = device_and_capability(settings.device, os.environ)
        self._by_text = started.source.asks and settings.train.precision == "auto"
        self.device = TorchDevice(self._device)
        flight_recorder.switch_on(settings, started.chosen.run, self._device.type)
        super().__init__(started, self._device.type, capability)
        if settings.tf32 is not None:
            switch_tf32(settings.tf32)
        self.precision = Mechanism(self.mode, self._device)  # applies nothing: the script does, or autocast around it
        rank, size = rank_and_size("torch")
        profiler = profiling.make(settings.profile, self._device, rank if spawned is None else spawned)
        self.profiling = Profiling(settings.profile, profiler, started.chosen.run)
        self.profiling.whenever()
        self.observer = ScriptObserver(self.precision, self.profiling)
        self._started = started
        self._as_rank = as_rank if size == 1 else None
        self._not_imported: Any = contextlib.nullcontext()
        if spawned is None:  # else the script has imported torch
            before = {name: os.environ.get(name) for name in THREADS}
            self._not_imported = hidden("torch", functools.partial(_take_threads, before))
        self._around = contextlib.ExitStack()
        self._autocast: AutocastAround | None = None

    def tell_early(self, early: EarlyVerdict) -> None:
        super().tell_early(early)
        advice = early.advice

        def advise() -> str:
            if self._autocast and self._autocast.switched_off:
                return SWITCHED_OFF
            if self._autocast and self._autocast.called_in_backward:
                return CALLS_IN_BACKWARD
            if self._by_text and not self.has_own_precision:
                return MADE_NONE
            return BEGAN_LATE if self._autocast and self._autocast.began_late else advice()

        early.advice = advise

    @contextlib.contextmanager
    def around(self, meter: StepMeter) -> Iterator[None]:
        meter.disturbed = self.observer.guard.hook(self.observer.slows_down)
        meter.wait = _wait
        self._counter = StepCounter(meter, self.observer.guard)
        ranks = self._ranks = SpawnedRanks(meter, self.observer)
        meter.memory = lambda: ranks.memory or self.device.peak_memory()
        starts_ranks: Any = contextlib.nullcontext()
        if self._as_rank:
            starts_ranks = ranks.watched(functools.partial(self._as_rank, self._started))
        with self._counter.counting(), self.observer.observing(), starts_ranks, self._around, attached():
            if self.mode.mechanism == "autocast_around":
                self._autocast = AutocastAround(self._device.type, self.precision.dtype)
                self._around.enter_context(self._autocast.applied())
            for name, value in script.handed_over(self.mode).items():
                self._around.callback(_set, name, os.environ.get(name))
                _set(name, value)
            with self._not_imported:
                yield

    def give_way(self) -> None:
        self._around.close()

    def reports_of_ranks(self, patience: float) -> Reports | None:
        return self._ranks.reports(patience) if self._ranks else None

    def mechanism(self) -> str:
        return self._ranks.mechanism or super().mechanism()

    def profile(self) -> dict[str, Any]:
        if self._ranks:
            self.profiling.record, self.profiling.note = self._ranks.profile
        return super().profile()

    def unseen(self) -> str:
        return self.observer.unseen()

    def instead(self, error: BaseException) -> str:
        applies = self._autocast is not None and isinstance(error, (RuntimeError, TypeError))
        lacks = "could not create a primitive" in str(error)
        if applies and (lacks or _OF_DTYPES.search(str(error))):
            half = str(self.precision.dtype).removeprefix("torch.")
            return (NO_KERNEL if lacks else MIXED_UP).format(level=self.mode.level, half=half)
        return super().instead(error)

    def trained_nothing(self) -> bool:
        return self.observer.trained_nothing()

    def skipped_unseen(self) -> int:
        return self._counter.skipped_unseen() + self._ranks.skipped_unseen


def _take_threads(before: Mapping[str, str | None], torch: Any) -> None:
    """Compute in as many threads as a script has set before it imported torch, which had read its variables by then."""
    for name in THREADS:
        said = os.environ.get(name)
        if said != before[name] and (number := re.match(r"[1-9]\d{0,5}", said or "")):
            torch.set_num_threads(min(int(number[0]), cgroup_limits.free_cpus()))
            return


def _wait() -> None:
    """For the GPU, if the script uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _set(name: str, value: str | None) -> None:
    """Set an environment variable, or remove it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
