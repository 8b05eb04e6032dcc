"""The one place where a training loop in Paddle meets its precision level. The loop never asks which level it has.

precision = Precision.of(settings.amp, settings.loss_scale, "cuda")
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
model, optimizer = precision.decorate(model, optimizer)          # before paddle.DataParallel
for inputs, labels in batches:
    with precision.forward():
        found = model(inputs)
    loss = mse_loss(found.astype("float32"), labels)                  # inside, o2 would compute it in half precision
    precision.backward(loss)                                      # loss / k where k micro-batches make a step
    outcome = precision.step(optimizer)                           # unscale, skip on overflow
    precision.update()
    optimizer.clear_grad()

On a CPU Paddle applies no mixed precision, and only o0 can be had. Nothing here beyond o0 was seen to run on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import paddle
from paddle import nn
from paddle.base import core

from recipes.paddle_ import devices
from recipes.paddle_.precision.loss_scale import go_on, make_scaler, scaler_arguments, state_of
from recipes.precision import checks, resolved
from recipes.precision.levels import Amp, LossScale
from recipes.precision.operations import in_paddle, paddle_lists
from recipes.precision.support import support_for
from recipes.trainer.spec import read_spec
from recipes.typed import SettingsError

# Paddle keeps BatchNorm in float32 by itself, and these only where the half precision is float16.
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)

SaveDtype = Literal["float16", "bfloat16", "float32"]
OptimizerStep = Callable[[Any], None]
"""Called with an optimizer that is about to step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What became of one optimizer step."""

    overflowed: Any = None
    """None where there is no loss scale."""
    loss_scale: float | None = None
    """The scale that this step's gradients had."""
    grad_norm: Any = None


class Precision:
    """A precision level, applied to a training loop in Paddle. This class is o0: float32, every method the plain thing.

    `dtype` is float32 at o0, else the half precision in use; `allow` and `deny` are torch's names of operations.
    """

    def __init__(
        self, *, amp: Amp, loss_scale: LossScale, dtype: str, mechanism: str, device: str, tf32: bool = False
    ) -> None:
        self.amp = amp
        self.level = amp.level
        self.loss_scale = loss_scale
        self.dtype = dtype
        self.mechanism = mechanism
        self.device = device
        self.tf32 = tf32
        self.allow, self.deny = paddle_lists(amp.allow, amp.deny)
        self.kept_layers: tuple[nn.Layer, ...] = ()
        """Layers that `amp.keep_fp32` keeps in float32, with all inside of them."""
        self.kept_by: dict[str, tuple[nn.Layer, ...]] = {}
        """The same by pattern of `amp.keep_fp32`."""
        self.skipped_total = 0
        """Optimizer steps skipped so far."""
        self.on_step: list[OptimizerStep] = []
        self._scaler = make_scaler(loss_scale)
        self._any_overflowed = False
        """Whether a step of this iteration overflowed, by any optimizer."""
        self._scale_of_graph: Callable[[], float | None] | None = None

    @staticmethod
    def of(amp: Amp, loss_scale: LossScale, device: str, *, tf32: bool | None = None) -> Precision:
        """The level that `amp` names, resolved for `device` (cpu or cuda). Raises `SettingsError` for what can't be.

        `tf32` None is off at o0 and on elsewhere. Sets Paddle's TF32 switches for the whole process.
        """
        return _resolve(amp, loss_scale, device, tf32, os.environ)

    @staticmethod
    def from_env(environ: Mapping[str, str] = os.environ) -> Precision:
        """The precision that the launcher was asked for, in a script of one's own, by the file LAUNCHER_SPEC names."""
        settings = read_spec(environ, "paddle")
        return _resolve(settings.amp, settings.loss_scale, devices.resolve(settings.device), settings.tf32, environ)

    def decorate(
        self, model: nn.Layer, optimizer: paddle.optimizer.Optimizer, save_dtype: SaveDtype | None = None
    ) -> tuple[nn.Layer, Any]:
        """Model and optimizer in the level's dtypes. Both at once: without its optimizer a model has no masters.

        `save_dtype` is what the `state_dict` of a half-precision model holds, for `paddle.save`: a copy of the weights,
        so that values are set by `parameters()`. Raises `SettingsError` for one at o0 and o1, whose model is float32.
        """
        if save_dtype not in (None, "float32"):
            raise SettingsError(
                f"save_dtype={save_dtype} with amp={self.level}: its model is float32, and is saved so; leave it out",
                "save_dtype",
            )
        return model, self.noted(optimizer)

    def noted(self, optimizer: Any) -> Any:
        """The optimizer, telling `on_step` what it is about to step."""

        def telling(method: Callable[..., Any]) -> Callable[..., Any]:
            def tell(*args: Any, **kwargs: Any) -> Any:
                for each in self.on_step:
                    each(optimizer)
                return method(*args, **kwargs)

            return tell

        optimizer.step = telling(optimizer.step)
        optimizer.minimize = telling(optimizer.minimize)  # what paddle.Model calls, and what doesn't call step
        return optimizer

    def forward(self) -> AbstractContextManager[Any]:
        """The model runs in here. The loss doesn't: at o2 and o3 Paddle runs whatever is inside in half precision."""
        return contextlib.nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Scale the loss and run backward. `loss` is a scalar, already divided by the number of micro-batches."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self, optimizer: paddle.optimizer.Optimizer) -> StepOutcome:
        """Unscale, and step unless the gradients overflowed."""
        if self._scaler is None:
            optimizer.step()
            return StepOutcome()
        scale = self.scale
        self._scaler.step(optimizer)
        overflowed = bool(self._scaler._cache_found_inf)
        self._any_overflowed |= overflowed
        return self.outcome(overflowed, scale)

    def outcome(self, overflowed: bool, scale: float | None) -> StepOutcome:
        """What became of a step whose gradients had that scale; None is no scale. Counts it where it was skipped."""
        if scale is None:
            return StepOutcome()
        self.skipped_total += overflowed
        return StepOutcome(overflowed=overflowed, loss_scale=scale)

    def update(self) -> None:
        """Move the loss scale. Once an iteration, after all optimizers' steps: one overflow makes it a bad one."""
        if self._scaler is not None:
            self._scaler._cache_found_inf = self._any_overflowed  # Paddle's own is the last optimizer's
            self._scaler.update()
            self._any_overflowed = False

    @property
    def scale(self) -> float | None:
        """The loss scale, None where there is none."""
        if self._scale_of_graph is not None:
            return self._scale_of_graph()
        return None if self._scaler is None or self._scaler._scale is None else float(self._scaler._scale.item())

    def scaled_by_graph(self, scale: Callable[[], float | None]) -> None:
        """From here on a static graph scales the loss; `scale` tells its scale as it is."""
        self._scale_of_graph = scale

    def lists(self) -> dict[str, list[str]]:
        """`amp.allow` and `amp.deny` as Paddle's own arguments, in Paddle's names of operations."""
        return {"custom_white_list": in_paddle(self.allow), "custom_black_list": in_paddle(self.deny)}

    def prepare(self, model: paddle.Model, optimizer: Any, loss: Any) -> None:
        """`paddle.Model.prepare` in the level's precision.

        The model takes this scaler for its own: without one it would make itself another, whose state nobody saves,
        and a dynamic one where no loss scale was asked for.
        """
        model.prepare(self.noted(optimizer), loss, amp_configs=self.amp_configs())
        model._scaler = self._scaler or paddle.amp.GradScaler(enable=False)

    def train_batch(self, model: paddle.Model, inputs: Any, labels: Any) -> tuple[float, StepOutcome]:
        """A step of `paddle.Model`, which casts, scales, steps and moves the scale by itself; gives its loss."""
        scale = self.scale
        (loss,) = model.train_batch([inputs], [labels])
        overflowed = self._scaler is not None and bool(self._scaler._cache_found_inf)
        return float(loss.item()), self.outcome(overflowed, scale)

    def amp_configs(self) -> dict[str, Any] | None:
        """For `paddle.Model.prepare(amp_configs=...)`; None for o0. Raises `SettingsError` for what it isn't told."""
        return None

    def static(self, optimizer: Any) -> Any:
        """The optimizer of a static graph, which rewrites the graph as it minimizes. The same one at o0.

        At o2 and o3 half precision is what is inside of `paddle.static.amp.fp16_guard`, which a loss should not be.
        """
        return optimizer

    def state_dict(self) -> dict[str, Any]:
        scaler = None if self._scaler is None else state_of(self._scaler)
        return {"level": self.level, "dtype": self.dtype, "scaler": scaler, "skipped": self.skipped_total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises `SettingsError` for one of another level or dtype."""
        for key, own in (("level", self.level), ("dtype", self.dtype)):
            if state[key] != own:
                raise SettingsError(f"amp.{key}={own}, and the checkpoint was saved with {state[key]}", f"amp.{key}")
        self.skipped_total = state["skipped"]
        if self._scaler is not None:
            go_on(self._scaler, state["scaler"])


class AutoCast(Precision):
    """o1: the model stays float32, and each operation runs in the dtype that the operation lists give it."""

    def forward(self) -> AbstractContextManager[Any]:
        cast = paddle.amp.auto_cast(level=self.level.upper(), dtype=self.dtype, **self.lists())
        return cast  # type: ignore[no-any-return]

    def amp_configs(self) -> dict[str, Any] | None:
        if self.dtype != "float16":
            raise SettingsError("paddle.Model knows float16 alone; say amp.dtype=float16", "amp.dtype")
        return {"level": "O1" if self.level == "o1" else "O2", **scaler_arguments(self.loss_scale), **self.lists()}

    def static(self, optimizer: Any) -> Any:
        lists = paddle.static.amp.CustomOpLists(**self.lists(), dtype=self.dtype)
        half_model = self.level != "o1"
        return paddle.static.amp.decorate(
            optimizer,
            amp_lists=lists,
            level="O2" if half_model else "O1",
            dtype=self.dtype,
            master_weight=self.level == "o2" and self.amp.master_weights is not False if half_model else None,
            use_amp_guard=half_model,
            **scaler_arguments(self.loss_scale),
        )


class Decorated(AutoCast):
    """o2, and o3 as its nearest: the model in half precision; the optimizer steps float32 masters, or at o3 none."""

    def decorate(
        self, model: nn.Layer, optimizer: paddle.optimizer.Optimizer, save_dtype: SaveDtype | None = None
    ) -> tuple[nn.Layer, Any]:
        kept = _matching(model, self.amp.keep_fp32)
        self.kept_layers = tuple(kept.values())
        self.kept_by = {each: tuple(_matching(model, (each,)).values()) for each in self.amp.keep_fp32}
        norms = [each for each in model.sublayers(include_self=True) if isinstance(each, NORMS)]
        masters = self.level == "o2" and self.amp.master_weights is not False
        excluded = [*kept.values(), *(norms if self.level == "o2" else [])]
        model, optimizer = paddle.amp.decorate(
            models=model,
            optimizers=optimizer,
            level="O2",
            dtype=self.dtype,
            master_weight=masters,
            save_dtype=save_dtype,
            excluded_layers=excluded or None,
        )
        return model, self.noted(optimizer)

    def forward(self) -> AbstractContextManager[Any]:
        cast = paddle.amp.auto_cast(level="O2", dtype=self.dtype, **self.lists())
        return cast  # type: ignore[no-any-return]


MECHANISMS: dict[str, type[Precision]] = {
    "float32": Precision,
    "auto_cast": AutoCast,
    "decorate_auto_cast": Decorated,
    "decorate_no_masters": Decorated,
}


def _resolve(amp: Amp, scale: LossScale, device: str, tf32: bool | None, environ: Mapping[str, str]) -> Precision:
    checks.check(amp, scale, "paddle")
    capability = devices.capability_of(device)
    dtype = resolved.resolve_dtype(amp.level, amp.dtype, device, capability, "paddle")
    if amp.level != "o0":
        checks.check(dataclasses.replace(amp, dtype=dtype), scale, "paddle")  # what auto became
    row = support_for("paddle", amp.level, dtype, False, device, amp.master_weights)
    if row.unsupported:
        raise SettingsError(row.unsupported, "amp.level")
    on = resolved.resolve_tf32(tf32, amp.level, device, capability, environ)
    core.set_cublas_switch(on)  # Paddle has both on, from the start
    core.set_cudnn_switch(on)
    return MECHANISMS[row.mechanism](
        amp=amp,
        loss_scale=resolved.resolve_scale(scale, amp.level, dtype, amp.master_weights),
        dtype=dtype,
        mechanism=row.mechanism,
        device=device,
        tf32=on,
    )


def _matching(model: nn.Layer, patterns: tuple[str, ...]) -> dict[str, nn.Layer]:
    """The layers whose names match. Raises `SettingsError` for a pattern that matches none."""
    from fnmatch import fnmatchcase

    layers = dict(model.named_sublayers())
    found = {}
    for pattern in patterns:
        matching = {name: each for name, each in layers.items() if fnmatchcase(name, pattern)}
        if not matching:
            raise SettingsError(f"amp.keep_fp32: {pattern} names no layer of {', '.join(layers)}", "amp.keep_fp32")
        found.update(matching)
    return found


def stepped(optimizer: paddle.optimizer.Optimizer) -> Counter[str]:
    """What the optimizer is about to step, in elements by dtype: masters where it has them."""
    found: Counter[str] = Counter()
    groups = [each["params"] if isinstance(each, dict) else [each] for each in optimizer._parameter_list]
    for each in (each for group in groups for each in group):
        if each.grad is not None:
            half = each.dtype in (paddle.float16, paddle.bfloat16)
            masters = half and getattr(optimizer, "_multi_precision", False)
            found["float32" if masters else dtype_name(each.dtype)] += each.size
    return found


def dtype_name(dtype: Any) -> str:
    """`float32` for `paddle.float32`."""
    return str(dtype).removeprefix("paddle.")
