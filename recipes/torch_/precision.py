"""The one place where a training loop meets its precision level. The loop never asks which level it has.

precision = Precision.of(settings.amp, settings.loss_scale, device)
model = DistributedDataParallel(precision.cast(model))       # cast first, then wrap or compile
optimizer = precision.optimizer(model, torch.optim.AdamW(model.parameters()))
for inputs, labels in batches:
    with precision.forward():
        loss = cross_entropy(model(precision.input(inputs)).float(), labels)
    precision.backward(loss)                                  # loss / k when k micro-batches make a step
    precision.step(optimizer, clip=1.0)                       # unscale, clip, skip on overflow
    precision.update()                                        # once an iteration, however many optimizers
    optimizer.zero_grad()
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from recipes import levels, operations
from recipes.levels import Amp, LossScale
from recipes.torch_ import cast, loss_scale, tf32
from recipes.torch_.float32 import compute_in_float32
from recipes.torch_.masters import Masters
from recipes.torch_.operations import OperationLists
from recipes.typed import SettingsError, build

SPEC = "LAUNCHER_SPEC"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What became of one optimizer step. Its tensors are scalars on the device: reading them waits for it."""

    overflowed: torch.Tensor | None = None
    """Bool; None where there is no loss scale, and so no step is ever skipped."""
    loss_scale: torch.Tensor | None = None
    """The scale that this step's gradients had; None where there is none."""
    grad_norm: torch.Tensor | None = None
    """Norm of all gradients together before clipping, unscaled; None without clipping."""

    @property
    def applied(self) -> bool:
        """Whether the weights were updated. Waits for the device."""
        return self.overflowed is None or not bool(self.overflowed)


class Precision:
    """A precision level applied to a training loop. This class is o0: float32, every method the plain thing."""

    def __init__(
        self,
        *,
        amp: Amp,
        loss_scale: LossScale,
        dtype: torch.dtype,
        mechanism: str,
        device: torch.device,
        tf32: bool,
        scaler: loss_scale.NoScale | loss_scale.LossScaler,
    ) -> None:
        self.amp = amp
        self.loss_scale = loss_scale
        """With `auto` resolved."""
        self.level = amp.level
        self.dtype = dtype
        """float32 at o0, else the half precision in use."""
        self.mechanism = mechanism
        self.device = device
        self.tf32 = tf32
        """Whether float32 matrix products may use TF32 on this device."""
        self.allow, self.deny = operations.lists(amp.allow, amp.deny)
        """Operation lists in torch's names."""
        self.kept: tuple[str, ...] = ()
        """Names of the modules kept in float32 by `amp.keep_fp32`; known after `cast`."""
        self._scaler = scaler

    @staticmethod
    def of(
        amp: Amp, loss_scale: LossScale, device: torch.device, *, tf32: bool | None = None, compile: bool = False
    ) -> Precision:
        """The level that `amp` names, resolved for `device`. Sets torch's TF32 switches for the process.

        `compile` says that the model is going to be compiled. Raises `SettingsError` for what can't be had, a CUDA
        device that isn't there included.
        """
        return _of(amp, loss_scale, device, tf32, compile, os.environ)

    @staticmethod
    def from_env(environ: Mapping[str, str] | None = None) -> Precision:
        """The precision that the launcher was asked for, in a script of one's own.

        The launcher exports LAUNCHER_SPEC, the path of a JSON file with `"schema": 1` and `"settings"`, of which
        `amp`, `loss_scale`, `tf32`, `compile`, `device` and `framework` are read. With device=auto it is the GPU
        numbered LOCAL_RANK (torchrun's) where there are GPUs, else the CPU; `precision.device` says which.

        Raises `SettingsError` where the variable isn't set: a script that quietly trained in float32 because its
        environment got lost is what this object is there to prevent. `Precision.of` needs no environment.
        """
        environ = os.environ if environ is None else environ
        settings = _read_spec(environ)
        device = _device(settings.get("device", "auto"), environ)
        return _of(
            build(Amp, settings.get("amp", {}), prefix="amp."),
            build(LossScale, settings.get("loss_scale", {}), prefix="loss_scale."),
            device,
            settings.get("tf32"),
            settings.get("compile", False),
            environ,
        )

    def cast(self, model: nn.Module) -> nn.Module:
        """The model in the level's dtypes, changed in place. Before DDP, FSDP, `torch.compile` and the optimizer.

        Raises `RuntimeError` for a model that is wrapped already, `SettingsError` for a pattern of `amp.keep_fp32`
        that names no module.
        """
        cast.refuse_wrapped(model)
        return model

    def optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The same optimizer, made to step what the level wants stepped. Once for each optimizer, after `cast`."""
        return optimizer

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Everything from the model's inputs to the loss goes in here; backward and step don't."""
        return contextlib.nullcontext()

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the dtype that the level feeds its model."""
        return tensor

    def backward(self, loss: torch.Tensor) -> None:
        """Scale the loss and run backward. `loss` is a float32 scalar, divided by the number of micro-batches."""
        self._scaler.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> StepOutcome:
        """Unscale, clip to the norm `clip`, and step unless the gradients overflowed. Gradients stay to be cleared."""
        norm = None
        if clip is not None:
            self._scaler.unscale_(optimizer)
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
        scale = self._scaler.snapshot()
        self._scaler.step(optimizer)
        return StepOutcome(overflowed=self._scaler.overflowed(optimizer), loss_scale=scale, grad_norm=norm)

    def update(self) -> None:
        """Move the loss scale. Once an iteration, after the last optimizer's step."""
        self._scaler.update()

    @property
    def scale(self) -> float | None:
        """The loss scale, None where there is none. Waits for the device."""
        return self._scaler.value

    @property
    def skipped_total(self) -> int:
        """Optimizer steps skipped so far, over all optimizers. Waits for the device."""
        return self._scaler.skipped

    def state_dict(self) -> dict[str, Any]:
        """Loss scale with its counts, and master weights: what the model's and optimizers' own states don't hold."""
        return {"level": self.level, "dtype": str(self.dtype), "scaler": self._scaler.state_dict(), "masters": []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved state, after `optimizer` was called for each optimizer, in the order they were saved in.

        Raises `SettingsError` for the state of another level or dtype.
        """
        for key, own in (("level", self.level), ("dtype", str(self.dtype))):
            if state[key] != own:
                raise SettingsError(f"amp.{key}={own} and the checkpoint was saved with {state[key]}", f"amp.{key}")
        self._scaler.load_state_dict(state["scaler"])


class Autocast(Precision):
    """o1: the model stays float32, each operation runs in the dtype that the operation lists give it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._lists = None
        if self.allow or self.deny:
            self._lists = OperationLists(self.allow, self.deny, self.dtype, self.device.type)

    def cast(self, model: nn.Module) -> nn.Module:
        super().cast(model)
        self._keep(model)
        return model

    def _keep(self, model: nn.Module, outputs_to: torch.dtype | None = None) -> list[nn.Module]:
        self.kept = cast.matching(model, self.amp.keep_fp32)
        modules = [model.get_submodule(name) for name in self.kept]
        for module in modules:
            compute_in_float32(module, self.device.type, outputs_to)
        return modules

    @contextlib.contextmanager
    def _forward_with_lists(self) -> Any:
        with torch.autocast(self.device.type, dtype=self.dtype), self._lists:
            yield

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        if self._lists is None:
            return torch.autocast(self.device.type, dtype=self.dtype)
        return self._forward_with_lists()


class HalfModelFloat32Masters(Autocast):
    """o2: half-precision model with float32 norms; the optimizer steps float32 masters; autocast stays on."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._masters: dict[int, Masters] = {}

    def cast(self, model: nn.Module) -> nn.Module:
        super().cast(model)
        kept = [model.get_submodule(name) for name in self.kept]
        norms = [each for each in model.modules() if isinstance(each, cast.NORMS)]
        cast.to_dtype(model, self.dtype, (*kept, *norms))
        return model

    def optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if self.amp.master_weights is not False:
            self._masters[id(optimizer)] = Masters(optimizer)
        return optimizer

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None = None) -> StepOutcome:
        masters = self._masters.get(id(optimizer))
        if masters is None:
            return super().step(optimizer, clip)
        masters.take_gradients()
        outcome = super().step(optimizer, clip)
        masters.give_weights()
        return outcome

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "masters": [each.state() for each in self._masters.values()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for masters, saved in zip(self._masters.values(), state["masters"], strict=True):
            masters.load(saved)


class HalfModel(Autocast):
    """o3: half precision throughout, inputs included."""

    def cast(self, model: nn.Module) -> nn.Module:
        Precision.cast(self, model)
        kept = self._keep(model, outputs_to=self.dtype)
        cast.to_dtype(model, self.dtype, kept)
        return model

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        return cast.floats_to(tensor, self.dtype)


LEVELS: dict[str, type[Precision]] = {
    "o0": Precision,
    "o1": Autocast,
    "o2": HalfModelFloat32Masters,
    "o3": HalfModel,
}


def _of(
    amp: Amp,
    scale: LossScale,
    device: torch.device,
    tf32_asked: bool | None,
    compile: bool,
    environ: Mapping[str, str],
) -> Precision:
    levels.check(amp, scale)
    capability = _capability(device)
    dtype = levels.resolve_dtype(amp.level, amp.dtype, device.type, capability)
    row = levels.mechanism("torch", amp.level, dtype, False, device.type)
    if row.hole:
        raise SettingsError(row.hole, "amp.level")
    resolved = levels.resolve_scale(scale, amp.level, dtype)
    on = tf32.resolve(tf32_asked, amp.level, device.type, capability, environ)
    tf32.switch(on)
    return LEVELS[amp.level](
        amp=amp,
        loss_scale=resolved,
        dtype=getattr(torch, dtype),
        mechanism=row.mechanism,
        device=device,
        tf32=on,
        scaler=loss_scale.make(resolved, device),
    )


def _capability(device: torch.device) -> tuple[int, int] | None:
    """Compute capability of a GPU, None for a CPU. Raises `SettingsError` for a device that isn't there."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise SettingsError(f"device={device.type} is not one of cpu, cuda", "device")
    if not torch.cuda.is_available():
        raise SettingsError("device=cuda: torch sees no CUDA GPU here; say device=cpu", "device")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise SettingsError(f"device={device}: torch sees {torch.cuda.device_count()} GPUs here", "device")
    return torch.cuda.get_device_capability(device)


def _device(name: str, environ: Mapping[str, str]) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device("cuda", int(environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


def _read_spec(environ: Mapping[str, str]) -> Mapping[str, Any]:
    path = environ.get(SPEC)
    if not path:
        raise SettingsError(
            f"{SPEC} is not set: the launcher sets it to the run's plan.json. Start the script through the launcher, "
            "or use Precision.of(Amp(level=...), LossScale(), device)",
            SPEC,
        )
    try:
        spec = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{SPEC}={path} can't be read: {error}", SPEC) from error
    if not isinstance(spec, dict) or spec.get("schema") != 1 or not isinstance(spec.get("settings"), dict):
        raise SettingsError(f'{SPEC}={path} is not a plan with "schema": 1 and "settings"', SPEC)
    settings: Mapping[str, Any] = spec["settings"]
    if settings.get("framework", "torch") != "torch":
        raise SettingsError(f"framework={settings['framework']} in {path}, and this is torch's Precision", "framework")
    return settings
