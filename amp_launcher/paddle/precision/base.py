"""A precision level in a Paddle training loop, which calls the same methods at every level.

precision = Precision.of(settings.amp, settings.loss_scale, "cuda")
model = precision.cast(model)                                     # before paddle.DataParallel
optimizer = precision.optimizer(model, paddle.optimizer.SGD(0.1, parameters=model.parameters()))
for inputs, labels in batches:
    with precision.forward():
        outputs = model(precision.input(inputs))
    loss = mse_loss(precision.output(outputs), labels)            # in the context o2 would compute it in half precision
    precision.backward(loss)                                      # loss / k where k micro-batches make a step
    outcome = precision.step(optimizer)                           # unscale, skip on overflow
    precision.update()                                            # once an iteration, however many optimizers
    optimizer.clear_grad()

On a CPU Paddle applies mixed precision to static graphs alone: `static_graph.py`. Nothing beyond o0 was run on a GPU
yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import paddle
from paddle import nn
from paddle.base import core

from amp_launcher.loop.strategy import Strategy
from amp_launcher.paddle import devices
from amp_launcher.paddle.precision.loss_scale import make_scaler, restore_scaler, scaler_state
from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.operations import in_paddle
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.typed import SettingsError

SaveDtype = Literal["float16", "bfloat16", "float32"]


class Precision(Strategy):
    """A precision level. This class is o0, float32; subclasses carry out the other levels."""

    framework = "paddle"
    _capability_of, _kind_of = staticmethod(devices.capability_of), staticmethod(devices.resolve)

    def __init__(self, resolved: ResolvedPrecision) -> None:
        super().__init__(resolved)
        self.kept: dict[str, tuple[nn.Layer, ...]] = {}
        """The layers that `amp.keep_fp32` keeps in float32, by its patterns, once a model was cast."""
        self.skipped_total = 0
        """Optimizer steps skipped so far."""
        self.scaler = make_scaler(resolved.loss_scale)
        """Paddle's own, None for no loss scale."""
        self.read_scale: Callable[[], float | None] = self._scale_of_scaler
        """A static graph, which scales the loss itself, replaces this."""
        self._overflowed = False
        """Whether a step of this iteration overflowed, of any optimizer."""

    @classmethod
    def _switch(cls, resolved: ResolvedPrecision) -> None:
        """Paddle's TF32 switches, which are on by default."""
        core.set_cublas_switch(bool(resolved.tf32))
        core.set_cudnn_switch(bool(resolved.tf32))

    def cast(self, model: nn.Layer, save_dtype: SaveDtype | None = None) -> nn.Layer:
        """Change the model to the level's dtypes, in place, and return it. Before `paddle.DataParallel`.

        `save_dtype` is the dtype of the `state_dict` of a half-precision model, for `paddle.save`; that state_dict is
        a copy, so set values through `parameters()`. Raises `SettingsError` for a `save_dtype` where the model is
        float32, and for a pattern of `amp.keep_fp32` that matches no layer.
        """
        if save_dtype not in (None, "float32"):
            raise SettingsError(
                f"save_dtype={save_dtype} with amp={self.level}: its model is float32, and is saved so; leave it out",
                "save_dtype",
            )
        return model

    def optimizer(self, model: nn.Layer, optimizer: Any) -> Any:
        """Prepare `optimizer` to step the model that was cast, with master weights where the level has them."""
        return optimizer

    def input(self, tensor: Any) -> Any:
        """A model's inputs. Paddle's auto_cast converts them itself."""
        return tensor

    def output(self, tensor: paddle.Tensor) -> paddle.Tensor:
        """A model's output in float32, as losses and metrics need it."""
        return tensor.astype("float32")

    def forward(self) -> AbstractContextManager[Any]:
        """A context for the model, not for the loss: at o2 and o3 Paddle runs all that is in it in half precision."""
        return contextlib.nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Scale the loss and run backward. `loss` is a scalar, already divided by the number of micro-batches."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> StepOutcome:
        """Unscale, and step unless the gradients overflowed."""
        if self.scaler is None:
            optimizer.step()
            return StepOutcome()
        scale = self.scale
        self.scaler.step(optimizer)
        overflowed = bool(self.scaler._cache_found_inf)
        self._overflowed |= overflowed
        return self.record(overflowed, scale)

    def record(self, overflowed: bool, scale: float | None) -> StepOutcome:
        """The outcome of a step with that loss scale (None for none). Counts the step if it was skipped."""
        if scale is None:
            return StepOutcome()
        self.skipped_total += overflowed
        return StepOutcome(overflowed=overflowed, loss_scale=scale)

    def update(self) -> None:
        """Move the loss scale. Once an iteration, after all optimizers' steps; one overflow makes the iteration bad."""
        if self.scaler is not None:
            self.scaler._cache_found_inf = self._overflowed  # Paddle's own is the last optimizer's
            self.scaler.update()
            self._overflowed = False

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
        """The loss scale and its counts: the state that is in neither model nor optimizers."""
        scaler = None if self.scaler is None else scaler_state(self.scaler)
        return {"level": self.level, "dtype": self.dtype, "scaler": scaler, "skipped": self.skipped_total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Raises `SettingsError` for one of another level or dtype."""
        check_saved_level(state, self.level, self.dtype)
        self.skipped_total = state["skipped"]
        if self.scaler is not None:
            restore_scaler(self.scaler, state["scaler"])


def dtype_name(dtype: Any) -> str:
    """`float32` for `paddle.float32`."""
    return str(dtype).removeprefix("paddle.")
