"""What carries a precision level out in Paddle: a mechanism, one class each, which `Precision` calls.

On a CPU Paddle applies mixed precision to static graphs alone: `static_graph.py`. Nothing beyond o0 was run on a GPU
yet.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import paddle
from paddle import nn

from amp_launcher.paddle.precision.clip import clip_norm, multiply
from amp_launcher.paddle.precision.loss_scale import make_scaler, restore_scaler, scaler_state
from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.operations import in_paddle
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome


class Mechanism:
    """This class is o0, float32; its subclasses are the other levels."""

    half_weights = False
    """Whether the model's weights are half-precision, and run within `forward` alone."""

    def __init__(self, resolved: ResolvedPrecision) -> None:
        self.resolved = resolved
        self.level = resolved.level
        self.dtype = resolved.dtype
        self.kept: dict[str, tuple[nn.Layer, ...]] = {}
        """The layers that `amp.keep_fp32` keeps in float32, by its patterns, once a model was cast."""
        self.skipped_total = 0
        """Optimizer steps skipped so far."""
        self.scaler = make_scaler(resolved.loss_scale)
        """Paddle's own, None for no loss scale."""
        self.read_scale: Callable[[], float | None] = self._scale_of_scaler
        """A static graph, which scales the loss itself, replaces this."""
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        """Since the loss scale last moved."""
        self._overflowed = False
        """Whether a step of these overflowed."""

    def cast(self, model: nn.Layer) -> None:
        """Put the model in the level's dtypes, in place. Before `paddle.DataParallel`. Raises `SettingsError` for a
        pattern of `amp.keep_fp32` that matches no layer."""

    def add(self, optimizer: Any) -> None:
        """Make an optimizer of a cast model step the level's weights, masters at o2. Once for each."""
        self._optimizers.add(optimizer)

    def forward(self) -> AbstractContextManager[Any]:
        """The context of the model's own call. The loss stays outside: at o2 and o3 Paddle runs all that is in it in
        half precision."""
        return contextlib.nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, *optimizers: Any, clip: float | None) -> StepOutcome:
        """Unscale, clip, step each unless its gradients overflowed, and move the loss scale once all that share it have
        stepped. One that steps again before the others has begun another iteration, so that the scale moves then."""
        scale = self.scale
        again = not self._stepped.isdisjoint(optimizers)
        for optimizer in optimizers if again and self.scaler is not None else ():
            self.scaler._optimizer_states.pop(id(optimizer), None)  # that it stepped, which Paddle refuses twice
        found = None if clip is None or self.scaler is None else self._unscaled(optimizers)
        norm = None if clip is None else clip_norm(optimizers, clip)
        overflowed = [self._step(optimizer, found) for optimizer in optimizers]
        self.skipped_total += sum(overflowed)
        if again:
            self._move(waiting=self._optimizers - self._stepped - set(optimizers))
        self._stepped.update(optimizers)
        self._overflowed |= any(overflowed)
        if self._stepped.issuperset(self._optimizers):
            self._move()
        return StepOutcome(overflowed=None if scale is None else any(overflowed), loss_scale=scale, grad_norm=norm)

    def _unscaled(self, optimizers: Iterable[Any]) -> paddle.Tensor:
        """Unscale these optimizers' gradients; whether any overflowed. Then there is no norm that they have in common,
        and none of them steps. Paddle's scaler remembers the last one's overflow alone."""
        found = paddle.zeros([1], "bool")
        for optimizer in optimizers:
            self.scaler.unscale_(optimizer)
            found = paddle.logical_or(found, self.scaler._found_inf)
        return found

    def _step(self, optimizer: Any, found: paddle.Tensor | None) -> bool:
        """Whether the step was skipped; `found` is the overflow of gradients that are unscaled already."""
        if self.scaler is None:
            optimizer.step()
            return False
        if found is not None:
            self.scaler._found_inf = found
        self.scaler.step(optimizer)
        return bool(self.scaler._cache_found_inf)

    def _move(self, waiting: Iterable[Any] = ()) -> None:
        """Move the loss scale; one overflow makes the iteration bad. Gradients of the optimizers that still wait for
        their step follow it."""
        if self.scaler is not None:
            before = self.scaler._scale
            self.scaler._cache_found_inf = self._overflowed  # Paddle's own is the last optimizer's
            self.scaler.update()
            if self.scaler._scale is not before:
                multiply(waiting, self.scaler._scale / before)
        self._stepped.clear()
        self._overflowed = False

    def record(self, overflowed: bool, scale: float | None) -> StepOutcome:
        """The outcome of a step that something else has taken, with that loss scale (None for none). Counts the step
        if it was skipped."""
        if scale is None:
            return StepOutcome()
        self.skipped_total += overflowed
        return StepOutcome(overflowed=overflowed, loss_scale=scale)

    @property
    def scale(self) -> float | None:
        """The loss scale, None where there is none."""
        return self.read_scale()

    def _scale_of_scaler(self) -> float | None:
        return None if self.scaler is None or self.scaler._scale is None else float(self.scaler._scale.item())

    def lists(self) -> dict[str, list[str]]:
        """`amp.allow` and `amp.deny` as Paddle's arguments, in Paddle's names of operations."""
        return {"custom_white_list": in_paddle(self.resolved.allow), "custom_black_list": in_paddle(self.resolved.deny)}

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its counts: the state that is in neither model nor optimizers. Ready for JSON."""
        scaler = None if self.scaler is None else scaler_state(self.scaler)
        return {"level": self.level, "dtype": self.dtype, "scaler": scaler, "skipped": self.skipped_total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises `SettingsError` for one of another level or dtype."""
        check_saved_level(state, self.level, self.dtype)
        self.skipped_total = state["skipped"]
        self._stepped.clear()
        self._overflowed = False
        if self.scaler is not None:
            restore_scaler(self.scaler, state["scaler"])


def dtype_name(dtype: Any) -> str:
    """`float32` for `paddle.float32`."""
    return str(dtype).removeprefix("paddle.")
