"""The calls of a training loop, the same in every mode.

precision = Precision("bf16-mixed")                           # the launcher's request wins where there is one
model, optimizer = precision.prepare(model, AdamW(model.parameters()))
model = DistributedDataParallel(model)                        # and torch.compile: after prepare
for batch in loader:
    optimizer.zero_grad()
    with precision:                                           # forward and loss
        loss = model(**batch).loss
    precision.backward(loss)                                  # loss / k where k micro-batches make a step
    precision.step(optimizer, clip=1.0)                       # unscale, clip, skip on overflow
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from amp_launcher.precision import listeners
from amp_launcher.precision.calls import Calls, refuse_clip, say_mode
from amp_launcher.precision.gemm_layers import Chosen
from amp_launcher.precision.levels import Amp, LossScale, amp_named, scale_named
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.spec import SPEC, read_spec
from amp_launcher.torch.precision import hooks, wrappers
from amp_launcher.torch.precision.base import Mechanism
from amp_launcher.torch.precision.cast import refuse_unknown
from amp_launcher.torch.precision.compiler import make_compilable
from amp_launcher.torch.precision.float32_masters import HalfModelFloat32Masters
from amp_launcher.torch.precision.mechanisms import Autocast, HalfModel, HalfModelNoMasters
from amp_launcher.torch.precision.model_checks import (
    refuse_closure,
    refuse_half,
    refuse_late_cast,
    refuse_no_loss,
    refuse_other_device,
    refuse_other_models,
    refuse_shared,
    refuse_stale,
    refuse_without_hooks,
    refuse_wrapped,
)
from amp_launcher.torch.precision.tf32 import switch_tf32
from amp_launcher.torch.spec import capability_of, device_from

MECHANISMS: dict[str, type[Mechanism]] = {
    "float32": Mechanism,
    "autocast": Autocast,
    "half_model_no_masters": HalfModelNoMasters,
    "half_model_fp32_masters": HalfModelFloat32Masters,
    "sharded_fp32_masters": Autocast,  # `sharding` gathers half-precision parameters from float32 shards
    "half_model": HalfModel,
}
"""The class of each mechanism that `amp_launcher.precision.support` names."""

_prepared: weakref.WeakSet[nn.Module | Optimizer] = weakref.WeakSet()
"""By whichever `Precision` of this process."""


class Precision(Calls):
    """A precision mode of a training loop.

    `resolved` has every setting; `level`, `dtype` (torch's, float32 at o0) and `device` repeat what scripts need.
    """

    resolved: ResolvedPrecision
    level: str
    dtype: torch.dtype
    device: torch.device

    def __init__(
        self,
        mode: str | Amp | None = None,
        *,
        loss_scale: str | LossScale = "auto",
        tf32: bool | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        """A level, as "o2", or a mode's name, as "bf16-mixed"; `Amp` has more settings. `device` "auto" is the GPU
        numbered LOCAL_RANK (torchrun's) where there are GPUs, else the CPU. Under the launcher all four are what was
        asked there. Sets torch's TF32 switches, and how compiled backwards use autocast, for the whole process.

        Raises `SettingsError` for an unknown mode, and for what can't be had on the device.
        """
        environ = os.environ
        compile = False
        if environ.get(SPEC):
            asked = read_spec(environ, "torch")
            amp, scale, tf32, compile, device = asked.amp, asked.loss_scale, asked.tf32, asked.compile, asked.device
        else:
            amp, tf32 = (mode, tf32) if isinstance(mode, Amp) else amp_named(mode or Amp().level, tf32)
            scale = loss_scale if isinstance(loss_scale, LossScale) else scale_named(loss_scale)
        where = device if isinstance(device, torch.device) else device_from(device, environ)
        capability = capability_of(where)
        resolved = resolve(
            amp, scale, framework="torch", device=where.type, capability=capability, environ=environ, tf32=tf32
        )
        self._start(resolved, where, compile)
        if mode is None and not environ.get(SPEC) and environ.get("RANK", "0") == "0":
            say_mode(amp.asked, resolved.dtype, where)
        listeners.tell(self)

    def _start(self, resolved: ResolvedPrecision, device: torch.device, compile: bool) -> None:
        make_compilable(resolved.amp, compile)
        switch_tf32(bool(resolved.tf32))
        self.resolved, self.device, self.level = resolved, device, resolved.level
        self._mechanism: Mechanism = MECHANISMS[resolved.mechanism](resolved, device)
        self.dtype = self._mechanism.dtype
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._unseen: list[nn.Module] = []
        """Models that no backward followed yet: what wraps them isn't known."""
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._to_step: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Optimizers that have not stepped since the last backward."""
        self._entered = False
        """Whether there was a block since all optimizers have stepped: a forward outside of one isn't the mode's."""
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Since the last block."""
        self._within: list[contextlib.AbstractContextManager[Any]] = []

    # The calls

    def prepare(self, *objects: Any) -> Any:
        """The models and optimizers, changed in place, as they were given: one by itself, several as a tuple.

        Models come before DistributedDataParallel, `fully_shard` and `torch.compile`, with their optimizers or before
        them: an optimizer of a model that is sharded is made and prepared after `fully_shard`. Raises `RuntimeError`
        for a model that is wrapped, prepared already or on another device, and for another model's optimizer;
        `SettingsError` for patterns and operation lists that don't fit the models.
        """
        models = [given for given in objects if isinstance(given, nn.Module)]
        optimizers = [given for given in objects if isinstance(given, Optimizer)]
        if len(models) + len(optimizers) < len(objects) or not objects:
            kinds = ", ".join(type(given).__name__ for given in objects) or "nothing"
            raise TypeError(f"precision.prepare takes models and optimizers of torch, and was given {kinds}")
        for model in models:
            self._refuse_model(model)
        refuse_unknown(models, self.resolved.amp.keep_fp32)
        for model in models:
            self._mechanism.cast(model)
            hooks.add(model, self._mechanism.inputs_to, self._mechanism.autocasts_half)
            self._models.add(model)
            _prepared.add(model)
            self._unseen.append(model)
        for optimizer in optimizers:
            self._prepare_optimizer(optimizer)
        return objects[0] if len(objects) == 1 else objects

    def _refuse_model(self, model: nn.Module) -> None:
        parts = set(model.modules())
        if any(prepared in parts or model in set(prepared.modules()) for prepared in self._models):
            raise RuntimeError("this model is prepared already: call precision.prepare(model, optimizer) once")
        refuse_wrapped(model)
        self._refuse_anothers_own(model)
        refuse_other_device(model, self.device)
        if self.level == "o0":
            refuse_half(model)

    def _refuse_anothers_own(self, given: nn.Module | Optimizer) -> None:
        if given in _prepared:
            kind = "model" if isinstance(given, nn.Module) else "optimizer"
            raise RuntimeError(
                f"this {kind} is prepared already, by another Precision: use one Precision for all of a training, or "
                "make model and optimizer anew"
            )

    def _prepare_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer in self._optimizers:
            raise RuntimeError("this optimizer is prepared already: call precision.prepare(model, optimizer) once")
        self._refuse_anothers_own(optimizer)
        if not self._models:
            raise RuntimeError("an optimizer comes with its model: call precision.prepare(model, optimizer)")
        for model in self._models:
            self._mechanism.look_at(model)
        refuse_other_models(optimizer, self._models)
        if self.resolved.amp.level != "o0":
            refuse_closure(optimizer)
            refuse_without_hooks(optimizer)
        self._mechanism.add(optimizer)
        self._optimizers.add(optimizer)
        _prepared.add(optimizer)

    def __enter__(self) -> Precision:
        """Everything from the model's inputs to the loss goes into the block; backward and step don't."""
        for model in self._unseen:
            self._mechanism.look_at(model)
        context = self._mechanism.forward()
        context.__enter__()
        self._within.append(context)
        self._entered = True
        self._stepped.clear()
        return self

    def __exit__(self, *error: Any) -> None:
        self._within.pop().__exit__(*error)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None = None) -> None:
        """Scale the loss and run backward. `loss` is a scalar, already divided by the number of micro-batches.

        `optimizer` is the one that steps by this loss, where one of several steps more often than the others by losses
        that reach their weights. With `loss_scale.per_optimizer` and several optimizers it is needed; other optimizers'
        parameters should not require gradients then: these would have the wrong scale.
        """
        self._refuse_within("backward(loss)")
        refuse_no_loss(loss)
        if not self._models:
            raise RuntimeError("precision.backward(loss) comes after precision.prepare(model, optimizer)")
        if not self._entered:
            raise RuntimeError("precision.backward(loss) comes after `with precision:` around the forward and the loss")
        if self._unseen:
            self._look_at_wrappers()
        self._mechanism.backward(loss, self._prepared_one(optimizer) if optimizer else None)
        self._to_step = weakref.WeakSet(self._optimizers)

    def _look_at_wrappers(self) -> None:
        unseen, self._unseen = self._unseen, []
        for model in unseen:
            self._mechanism.look_at(model)
        for wrapper in wrappers.of_ddp(unseen):
            refuse_late_cast(wrapper)
            self._mechanism.reduce(wrapper)
        refuse_stale(unseen, self._optimizers)

    def step(self, *optimizers: Optimizer, clip: float | None = None) -> StepOutcome:
        """Unscale, clip, and step each optimizer unless its gradients overflowed; the loss scale follows.

        `clip` is the largest norm of all gradients of these optimizers together.
        """
        self._refuse_within("step(optimizer)")
        if torch.is_autocast_enabled(self.device.type):  # whose cache of cast weights is emptied only where it ends
            raise RuntimeError("precision.step(optimizer) is under torch.autocast: end that first")
        if not optimizers:
            raise TypeError("precision.step() needs the optimizers that step: write precision.step(optimizer)")
        refuse_clip(clip, torch.Tensor)
        for given in optimizers:
            if not isinstance(given, Optimizer):
                raise TypeError(
                    f"precision.step takes optimizers, one after another, and was given {type(given).__name__}: "
                    "write precision.step(optimizer, clip=1.0)"
                )
        optimizers = tuple(map(self._prepared_one, optimizers))
        for optimizer in optimizers:
            if optimizer not in self._optimizers:
                raise RuntimeError(
                    "precision.step(optimizer) comes after model, optimizer = precision.prepare(model, optimizer)"
                )
            if optimizer not in self._to_step:
                raise RuntimeError(
                    "precision.step(optimizer) comes after precision.backward(loss), which takes the place of "
                    "loss.backward(); there was none since this optimizer's last step"
                )
        refuse_shared(optimizers, clip)
        outcome = self._mechanism.step(*optimizers, clip=clip)
        for optimizer in optimizers:
            self._to_step.discard(optimizer)
            self._stepped.add(optimizer)
        self._entered = not self._stepped.issuperset(self._optimizers)
        return outcome

    def _prepared_one(self, optimizer: Optimizer) -> Optimizer:
        """The optimizer that was prepared: accelerate's `prepare` wraps it in one of its own."""
        within = getattr(optimizer, "optimizer", None)
        return within if within in self._optimizers and optimizer not in self._optimizers else optimizer

    def _refuse_within(self, call: str) -> None:
        if self._within:
            raise RuntimeError(f"precision.{call} is inside `with precision:`: end the block first")

    # What else a script may ask

    def state_dict(self) -> dict[str, Any]:
        """Level, and loss scale with its counts. The optimizers' own states have the scale too, and masters: a script
        that saves these and the model's resumes bit for bit."""
        return self._mechanism.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state, once the same models and optimizers are prepared, in the order they were saved in.

        Raises `SettingsError` for a state saved at another level, in another dtype or with another loss scale.
        """
        self._mechanism.load_state_dict(state)

    def master_parameters(self) -> dict[str, torch.Tensor]:
        """The weights that optimizers step, by their names in the model: float32 masters at o2, else the model's own.

        For averages of weights (EMA), for example: averages of the model's own would be averages of rounded weights. To
        change weights, change the model's; masters follow. Names in a second model begin with `1/`.
        """
        return self._mechanism.master_parameters()

    def parameter_names(self, optimizer: Optimizer) -> dict[torch.Tensor, str]:
        """An optimizer's parameters, in its order, with their names in the model."""
        return self._mechanism.parameter_names(optimizer)

    # What the observer asks

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the modules that `amp.keep_fp32` keeps in float32."""
        return self._mechanism.kept

    @property
    def gemm_layers(self) -> Chosen:
        """The linear layers that `amp.gemm` converted, named as in `module_names`."""
        return self._mechanism.gemm_layers

    def module_names(self) -> dict[nn.Module, str]:
        """The modules of all prepared models, with their names; those in a second one begin with `1/`."""
        return self._mechanism.module_names()


def precision_of(resolved: ResolvedPrecision, device: torch.device, *, compile: bool = False) -> Precision:
    """The calls in a precision that was resolved (`amp_launcher.precision.resolved`), as a recipe's is."""
    precision = Precision.__new__(Precision)
    precision._start(resolved, device, compile)
    return precision
