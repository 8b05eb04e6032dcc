"""The calls of a training loop, the same in every mode.

precision = Precision("o1")                     # the launcher's request wins where there is one
model, optimizer = precision.prepare(model, paddle.optimizer.AdamW(parameters=model.parameters()))
model = paddle.DataParallel(model)              # after prepare
for inputs, labels in batches:
    with precision:                             # forward and loss
        loss = cross_entropy(model(inputs), labels)
    precision.backward(loss)                    # loss / k where k micro-batches make a step
    precision.step(optimizer, clip=1.0)         # unscale, clip, skip on overflow
    optimizer.clear_grad()
"""

from __future__ import annotations

import contextlib
import os
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import paddle
from paddle import nn
from paddle.optimizer import Optimizer

from amp_launcher.paddle import devices
from amp_launcher.paddle.precision import hooks
from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.paddle.precision.clip import parameters
from amp_launcher.paddle.precision.mechanisms import mechanism_of
from amp_launcher.precision import listeners
from amp_launcher.precision.calls import Calls, refuse_clip, say_mode
from amp_launcher.precision.levels import Amp, LossScale, amp_named, scale_named
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.spec import SPEC, read_spec

_prepared: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models and optimizers, by whichever `Precision` of this process."""


class Precision(Calls):
    """A precision mode of a training loop.

    `resolved` has every setting; `level`, `dtype` ("float32" at o0) and `device` ("cpu" or "cuda") repeat what scripts
    need.
    """

    resolved: ResolvedPrecision
    level: str
    dtype: str
    device: str

    def __init__(
        self,
        mode: str | Amp | None = None,
        *,
        loss_scale: str | LossScale = "auto",
        tf32: bool | None = None,
        device: str = "auto",
    ) -> None:
        """A level, as "o2", or a mode's name, as "bf16-mixed"; `Amp` has more settings. `device` "auto" is where Paddle
        computes, by `paddle.set_device`. Under the launcher all four are what was asked there. Sets Paddle's TF32
        switches for the whole process.

        Raises `SettingsError` for an unknown mode, and for what can't be had on the device.
        """
        environ = os.environ
        if environ.get(SPEC):
            asked = read_spec(environ, "paddle")
            amp, scale, tf32, kind = asked.amp, asked.loss_scale, asked.tf32, devices.resolve(asked.device)
        else:
            amp, tf32 = (mode, tf32) if isinstance(mode, Amp) else amp_named(mode or Amp().level, tf32)
            scale = loss_scale if isinstance(loss_scale, LossScale) else scale_named(loss_scale)
            kind = ("cuda" if paddle.get_device().startswith("gpu") else "cpu") if device == "auto" else device
        capability = devices.capability_of(kind)
        resolved = resolve(
            amp, scale, framework="paddle", device=kind, capability=capability, environ=environ, tf32=tf32
        )
        self._start(mechanism_of(resolved))
        if mode is None and not environ.get(SPEC) and environ.get("PADDLE_TRAINER_ID", "0") == "0":
            say_mode(amp.asked, resolved.dtype, kind)
        listeners.tell(self)

    def _start(self, mechanism: Mechanism) -> None:
        resolved = mechanism.resolved
        self.resolved, self.level, self.dtype, self.device = resolved, resolved.level, resolved.dtype, resolved.device
        self._mechanism = mechanism
        self._models: weakref.WeakSet[nn.Layer] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._to_step: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that have not stepped since the last backward."""
        self._within = False
        self._entered = False
        """Whether there was a block since all optimizers have stepped: a forward outside of one isn't the mode's."""
        self._running: list[ExitStack] = []
        """Of the calls of models that have not returned."""

    # The calls

    def prepare(self, *objects: Any) -> Any:
        """The models and optimizers, changed in place, as they were given: one by itself, several as a tuple.

        Models come before `paddle.DataParallel`, optimizers with them or after them. Raises `RuntimeError` for a model
        that is wrapped or prepared already, and for another model's optimizer; `SettingsError` for patterns of
        `amp.keep_fp32` that don't fit the model.
        """
        models = [given for given in objects if isinstance(given, nn.Layer)]
        optimizers = [given for given in objects if isinstance(given, Optimizer)]
        if len(models) + len(optimizers) < len(objects) or not objects:
            kinds = ", ".join(type(given).__name__ for given in objects) or "nothing"
            raise TypeError(f"precision.prepare takes models and optimizers of Paddle, and was given {kinds}")
        for model in models:
            self._refuse_prepared(model)
            if any(isinstance(layer, paddle.DataParallel) for layer in model.sublayers(include_self=True)):
                raise RuntimeError(
                    "the model is already wrapped by paddle.DataParallel; precision.prepare(model) comes first"
                )
        for model in models:
            self._mechanism.cast(model)
            if self.level != "o0":
                hooks.add(model, self._context, self._running)
            self._models.add(model)
            _prepared.update(model.sublayers(include_self=True))
        for optimizer in optimizers:
            self._refuse_prepared(optimizer)
            self._refuse_other_models(optimizer)
            self._mechanism.add(optimizer)
            self._optimizers.add(optimizer)
            _prepared.add(optimizer)
        return objects[0] if len(objects) == 1 else objects

    def _refuse_prepared(self, given: nn.Layer | Optimizer) -> None:
        parts = given.sublayers(include_self=True) if isinstance(given, nn.Layer) else [given]
        if any(part in _prepared for part in parts):
            kind = "model" if isinstance(given, nn.Layer) else "optimizer"
            raise RuntimeError(
                f"this {kind} is prepared already: call precision.prepare(model, optimizer) once, with one Precision "
                "for all of a training"
            )

    def _refuse_other_models(self, optimizer: Optimizer) -> None:
        if not self._models:
            raise RuntimeError("an optimizer comes with its model: call precision.prepare(model, optimizer)")
        own = {id(parameter) for model in self._models for parameter in model.parameters()}
        if own.isdisjoint(map(id, parameters(optimizer))):
            raise RuntimeError(
                "this optimizer steps no parameter of a prepared model: make it from model.parameters() of the model "
                "that is prepared"
            )

    def _context(self) -> AbstractContextManager[Any]:
        """Of a prepared model's call."""
        if self._within:
            return self._mechanism.forward()
        if self._mechanism.half_weights:
            raise RuntimeError(
                "the model is called outside of `with precision:`, and its half-precision weights need the block "
                "around every forward, in evaluation too"
            )
        return contextlib.nullcontext()

    def __enter__(self) -> Precision:
        """Everything from the model's inputs to the loss goes into the block; backward and step don't."""
        if self._within:
            raise RuntimeError("`with precision:` is inside of another one: one is enough")
        self._within = self._entered = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._within = False
        while self._running:
            self._running.pop().close()

    def backward(self, loss: paddle.Tensor) -> None:
        """Scale the loss and run backward. `loss` is a scalar, already divided by the number of micro-batches."""
        self._refuse_within("backward(loss)")
        if not isinstance(loss, paddle.Tensor):
            raise TypeError(f"precision.backward takes the loss as a tensor, and was given {type(loss).__name__}")
        if loss.size != 1:
            raise ValueError(
                f"precision.backward takes a loss of one number, and was given one of shape {list(loss.shape)}: take "
                "its .mean() or .sum()"
            )
        if not self._models:
            raise RuntimeError("precision.backward(loss) comes after precision.prepare(model, optimizer)")
        if not self._entered:
            raise RuntimeError("precision.backward(loss) comes after `with precision:` around the forward and the loss")
        self._mechanism.backward(loss)
        self._to_step = weakref.WeakSet(self._optimizers)

    def step(self, *optimizers: Optimizer, clip: float | None = None) -> StepOutcome:
        """Unscale, clip, and step each optimizer unless its gradients overflowed; the loss scale follows, once an
        iteration.

        `clip` is the largest norm of all gradients of these optimizers together; an optimizer's own `grad_clip` comes
        after it.
        """
        self._refuse_within("step(optimizer)")
        if not optimizers:
            raise TypeError("precision.step() needs the optimizers that step: write precision.step(optimizer)")
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    f"precision.step takes optimizers, one after another, and was given {type(optimizer).__name__}: "
                    "write precision.step(optimizer, clip=1.0)"
                )
            if optimizer not in self._optimizers:
                raise RuntimeError(
                    "precision.step(optimizer) comes after model, optimizer = precision.prepare(model, optimizer)"
                )
            if optimizer not in self._to_step:
                raise RuntimeError(
                    "precision.step(optimizer) comes after precision.backward(loss), which takes the place of "
                    "loss.backward(); there was none since this optimizer's last step"
                )
        refuse_clip(clip, paddle.Tensor)
        outcome = self._mechanism.step(*optimizers, clip=clip)
        self._to_step.difference_update(optimizers)
        self._entered = bool(self._to_step)
        return outcome

    def _refuse_within(self, call: str) -> None:
        if self._within:
            raise RuntimeError(f"precision.{call} is inside `with precision:`: end the block first")

    # What else a script may ask

    def state_dict(self) -> dict[str, Any]:
        """Level, and loss scale with its counts, ready for JSON. In Paddle an optimizer's own state has no place for
        the scale: a script saves this beside the model's and the optimizers' states."""
        return self._mechanism.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. Raises `SettingsError` for one of another level or dtype."""
        self._mechanism.load_state_dict(state)

    # What the observer asks

    @property
    def kept(self) -> dict[str, tuple[nn.Layer, ...]]:
        """The layers that `amp.keep_fp32` keeps in float32, by its patterns."""
        return self._mechanism.kept


def precision_of(mechanism: Mechanism) -> Precision:
    """The calls over a mechanism, as a recipe's is."""
    precision = Precision.__new__(Precision)
    precision._start(mechanism)
    return precision
