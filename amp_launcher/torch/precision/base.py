"""A precision level, applied to a training loop. The loop is the same at every level.

precision = Precision.of(settings.amp, settings.loss_scale, device)
model = DistributedDataParallel(precision.cast(model))       # cast first, then wrap or compile
optimizer = precision.optimizer(model, AdamW(model.parameters()))
for inputs, labels in batches:
    optimizer.zero_grad()
    with precision.forward():
        loss = cross_entropy(precision.output(model(precision.input(inputs))), labels)
    precision.backward(loss)                                  # loss / k where k micro-batches make a step
    precision.step(optimizer, clip=1.0)                       # unscale, clip, skip on overflow
    precision.update()                                        # once an iteration, however many optimizers
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from amp_launcher.precision.checks import check_saved_level
from amp_launcher.precision.gemm_layers import NO_LAYERS
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.spec import read_spec
from amp_launcher.torch.precision.cast import floats_to
from amp_launcher.torch.precision.compiler import make_compilable
from amp_launcher.torch.precision.loss_scale import LossScaler, LossScalers, NoScale, make_scaler
from amp_launcher.torch.precision.model_checks import refuse_wrapped
from amp_launcher.torch.precision.tf32 import switch_tf32
from amp_launcher.torch.spec import capability_of, device_from


class Precision:
    """The strategy of a training loop. This class is o0, float32; its subclasses are the other mechanisms.

    `resolved` has every setting; `level`, `dtype` (torch's, float32 at o0) and `device` repeat what scripts need.
    """

    def __init_subclass__(cls, *, mechanism: str) -> None:
        MECHANISMS[mechanism] = cls

    def __init__(self, resolved: ResolvedPrecision, device: torch.device) -> None:
        self.resolved = resolved
        self.level = resolved.level
        self.dtype: torch.dtype = getattr(torch, resolved.dtype)
        self.device = device
        self.kept: tuple[str, ...] = ()
        """Names of the modules that `amp.keep_fp32` keeps in float32, once a model was cast."""
        self.gemm_layers = NO_LAYERS
        """The linear layers that `amp.gemm` converted in the models that were cast, named as in `module_names`."""
        self._scaler: NoScale | LossScaler | LossScalers = make_scaler(resolved.loss_scale, device)
        self._models: list[weakref.ref[nn.Module]] = []

    @staticmethod
    def of(
        amp: Amp,
        loss_scale: LossScale,
        device: torch.device,
        *,
        tf32: bool | None = None,
        compile: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Precision:
        """The level that `amp` names, resolved for `device`.

        `tf32` None is off at o0 and on elsewhere; `compile` says that the model will be compiled. Sets torch's TF32
        switches for the whole process, and with `compile` how compiled backwards use autocast. Raises `SettingsError`
        for a level or a CUDA device that isn't available.
        """
        capability = capability_of(device)
        resolved = resolve(
            amp, loss_scale, framework="torch", device=device.type, capability=capability, environ=environ, tf32=tf32
        )
        return Precision.apply(resolved, device, compile=compile)

    @staticmethod
    def apply(resolved: ResolvedPrecision, device: torch.device, *, compile: bool = False) -> Precision:
        """The same for a precision that was resolved (`amp_launcher.precision.resolved`) for torch and `device`."""
        if compile:
            make_compilable(resolved.amp)
        switch_tf32(resolved.tf32)
        return MECHANISMS[resolved.mechanism](resolved, device)

    @staticmethod
    def from_env(environ: Mapping[str, str] = os.environ) -> Precision:
        """The precision requested from the launcher, in a user's own script.

        The launcher sets LAUNCHER_SPEC, the path of a JSON file with `"schema": 2` and `"settings"`. Of these it takes
        `amp`, `loss_scale`, `tf32`, `compile`, `device` and `framework`. device=auto is the GPU numbered LOCAL_RANK
        (torchrun's) where there are GPUs, else the CPU; `precision.device` says which.

        Raises `SettingsError` where the variable isn't set: a script that lost its environment must not train in
        float32 unnoticed. `Precision.of` needs no environment.
        """
        asked = read_spec(environ, "torch")
        device = device_from(asked.device, environ)
        return Precision.of(
            asked.amp, asked.loss_scale, device, tf32=asked.tf32, compile=asked.compile, environ=environ
        )

    def cast(self, model: nn.Module) -> nn.Module:
        """The model in the level's dtypes, changed in place. Before the optimizer, DDP, FSDP and `torch.compile`.

        Models that train together and share one `amp.keep_fp32` are cast together, in a `ModuleDict`. Raises
        `RuntimeError` for a model that is wrapped already, `SettingsError` for a pattern that names no module and for
        an operation list that couldn't be kept in this model.
        """
        refuse_wrapped(model)
        self._models.append(weakref.ref(model))
        return model

    def optimizer(self, model: nn.Module, optimizer: Optimizer) -> Optimizer:
        """The same optimizer, made to step the level's weights, masters at o2. Once for each optimizer, after `cast`.

        `model` is the one that was cast or a part of it, as it will be trained: wrapped by DDP, if it will be, since
        this makes the reduction over the ranks float32. Raises `RuntimeError` where it was not cast, or too late.
        """
        return optimizer

    def master_parameters(self) -> dict[str, torch.Tensor]:
        """The weights that optimizers step, by their names in the model: float32 masters at o2, else the model's own.

        For averages of weights (EMA), for example: averages of the model's own would be averages of rounded weights. To
        change weights, change the model's; masters follow. Names in a second model that was cast begin with `1/`.
        """
        return dict(self._named_parameters())

    def parameter_names(self, optimizer: Optimizer) -> dict[torch.Tensor, str]:
        """The tensors that an optimizer steps, in its order, with the names of the parameters in the model."""
        names = self._names_of_stepped(optimizer)
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return {parameter: names.get(parameter, f"unnamed.{position}") for position, parameter in enumerate(stepped)}

    def _names_of_stepped(self, optimizer: Optimizer) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self.master_parameters().items()}

    def module_names(self) -> dict[nn.Module, str]:
        """The modules of all models that were cast, with their names; those in a second one begin with `1/`."""
        return {
            module: prefix + name for prefix, model in self._cast_models() for name, module in model.named_modules()
        }

    def _named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, model in self._cast_models():
            for name, parameter in model.named_parameters():
                yield prefix + name, parameter

    def _cast_models(self) -> Iterator[tuple[str, nn.Module]]:
        """With what their names begin with."""
        for number, reference in enumerate(self._models):
            model = reference()
            if model is not None:
                yield (f"{number}/" if number else ""), model

    def forward(self) -> AbstractContextManager[Any]:
        """Everything from the model's inputs to the loss goes in here; backward and step don't."""
        return contextlib.nullcontext()

    def input(self, tensor: Any) -> Any:
        """A tensor, or tensors in lists, tuples and dictionaries, in the dtype that the level feeds its model."""
        return tensor

    def output(self, tensor: Any) -> Any:
        """A model's outputs, in the same structures, in float32: compute losses and metrics from these."""
        return floats_to(tensor, torch.float32)

    def backward(self, loss: torch.Tensor, optimizer: Optimizer | None = None) -> None:
        """Scale the loss and run backward. `loss` is a scalar, already divided by the number of micro-batches.

        With `loss_scale.per_optimizer` and several optimizers, `optimizer` is the one that steps by this loss. Other
        optimizers' parameters should not require gradients here: these would have the wrong scale.
        """
        self._scaler.of(optimizer).scale(loss).backward()

    def step(self, optimizer: Optimizer, clip: float | None = None) -> StepOutcome:
        """Unscale, clip the norm of all gradients to `clip`, and step unless they overflowed.

        Raises `RuntimeError` under autocast: its cache of cast weights is emptied only where it ends, so that the next
        forward would see the weights from before the step.
        """
        if torch.is_autocast_enabled(self.device.type):
            raise RuntimeError("precision.step(optimizer) was called under autocast; end precision.forward() first")
        norm = None
        scaler = self._scaler.of(optimizer)
        if clip is not None:
            scaler.unscale_(optimizer)
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
            if hasattr(norm, "full_tensor"):  # of shards: each rank has its part of it
                norm = norm.full_tensor()
        scale = scaler.snapshot()
        scaler.step(optimizer)
        return StepOutcome(overflowed=scaler.overflowed(optimizer), loss_scale=scale, grad_norm=norm)

    def update(self) -> None:
        """Update the loss scale. Once an iteration, after the last optimizer's step."""
        self._scaler.update()

    @property
    def scale(self) -> float | None:
        """The loss scale, the lowest of several, None where there is none. Waits for the device."""
        return self._scaler.value

    @property
    def skipped_total(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return self._scaler.skipped

    def state_dict(self) -> dict[str, Any]:
        """Loss scale with its counts, and master weights: what the states of model and optimizers lack."""
        return {"level": self.level, "dtype": str(self.dtype), "scaler": self._scaler.state_dict(), "masters": {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state. After `optimizer` was called for each optimizer, in the order they were saved in.

        Raises `SettingsError` for a state saved at another level, in another dtype or with another loss scale.
        """
        check_saved_level(state, self.level, str(self.dtype))
        self._scaler.load_state_dict(state["scaler"])


MECHANISMS: dict[str, type[Precision]] = {"float32": Precision}
"""The class of each mechanism; subclasses register themselves."""
