"""Reports each optimizer step of a user's script to its meter, by torch's own global hooks.

`GradScaler` doesn't call an optimizer whose gradients overflowed, so that no hook runs; a fused optimizer is called and
skips the step itself. Steps inside a replayed CUDA graph can't be counted.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from amp_launcher.around.replaced import observed
from amp_launcher.around.step_meter import StepMeter
from amp_launcher.precision.observation import Guard
from amp_launcher.torch.uncompiled import uncompiled

CAPTURED = "its optimizer steps are part of a CUDA graph, and replays of it call no hook"


class StepCounter:
    """Counts the steps of a script's optimizers for `meter`."""

    def __init__(self, meter: StepMeter, guard: Guard) -> None:
        self._meter = meter
        self._guard = guard
        self._scale: float | None = None
        """The loss scale of the current step."""
        self._overflowed: torch.Tensor | None = None
        """Number of steps that fused optimizers skipped, on a GPU."""
        self._hooks = contextlib.ExitStack()
        self._missed: int | None = None
        """Steps that the engine had begun before its steps were counted; 0 once added, None without an engine."""
        self._in_engine = False
        """Whether a step of the engine is being taken, which may step optimizers in parts."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """The script runs in this context."""
        self._guard.hook(self._start)()
        try:
            yield
        finally:
            with self._guard():
                self._hooks.close()
        if self._guard.problems and not self._meter.uncounted:
            self._meter.uncounted = self._guard.problems[0]

    def _start(self) -> None:
        handle = register_optimizer_step_post_hook(uncompiled(self._stepped, self._guard))
        self._hooks.callback(handle.remove)
        self._hooks.enter_context(observed(GradScaler, "step", self._guard, self._before_scaler, self._after_scaler))

    def skipped_unseen(self) -> int:
        """Steps that a fused optimizer skipped on a GPU, where that isn't known immediately. Waits for the device."""
        return 0 if self._overflowed is None else int(self._overflowed)

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            self._meter.uncounted = CAPTURED
            return
        engine = getattr(sys.modules.get("deepspeed"), "DeepSpeedEngine", None)
        if engine is not None and self._missed is None:
            self._count_engine(engine)
        if self._in_engine:
            return
        overflow: Any = getattr(optimizer, "found_inf", None)  # which GradScaler gives fused optimizers
        known = isinstance(overflow, torch.Tensor) and overflow.device.type == "cpu"
        self._meter.stepped(optimizer, not (known and overflow.item()), loss_scale=self._scale)
        if isinstance(overflow, torch.Tensor) and not known and self._meter.optimizers.is_first(optimizer):
            skipped = (overflow > 0).sum()
            self._overflowed = skipped if self._overflowed is None else self._overflowed + skipped

    def _count_engine(self, kind: Any) -> None:
        """Count by DeepSpeed's own `global_steps` and `skipped_steps`, if the script trains by it: many libraries only
        import it."""
        self._in_engine = _is_called_by(kind)
        self._missed = int(self._in_engine)
        self._hooks.enter_context(observed(kind, "step", self._guard, self._before_engine, self._after_engine))

    def _before_engine(self, engine: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self._in_engine = True
        return engine.global_steps, engine.skipped_steps

    def _after_engine(
        self, before: tuple[int, int], returned: tuple[Any, ...], engine: Any, *args: Any, **kwargs: Any
    ) -> None:
        self._in_engine = False
        steps, skipped = before
        if returned and (count := engine.global_steps - steps):
            count, self._missed = count + (self._missed or 0), 0
            skipped = engine.skipped_steps - skipped
            self._meter.stepped(engine, applied=True, count=count, skipped=skipped, name="DeepSpeed's engine")

    def _before_scaler(self, scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> int | None:
        if not scaler.is_enabled():
            return None
        self._scale = _scale_on_cpu(scaler, optimizer)
        return self._meter.optimizers.steps_of(optimizer)

    def _after_scaler(
        self,
        before: int,
        returned: tuple[Any, ...],
        scaler: GradScaler,
        optimizer: Optimizer,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        scale, self._scale = self._scale, None
        if returned and self._meter.optimizers.steps_of(optimizer) == before:
            self._meter.stepped(optimizer, applied=False, loss_scale=scale)


def _is_called_by(kind: type[Any]) -> bool:
    """Whether a method of such an object is being executed."""
    frame = inspect.currentframe()
    while frame is not None and not isinstance(frame.f_locals.get("self"), kind):
        frame = frame.f_back
    return frame is not None


def _scale_on_cpu(scaler: GradScaler, optimizer: Optimizer) -> float | None:
    """The loss scale; None on a GPU, where reading it waits."""
    devices = {parameter.device.type for group in optimizer.param_groups for parameter in group["params"][:1]}
    return float(scaler.get_scale()) if devices == {"cpu"} else None
