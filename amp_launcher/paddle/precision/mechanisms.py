"""The mechanisms of o1, o2 and o3: subclasses of `Precision`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any

import paddle
from paddle import nn

from amp_launcher.paddle.precision.base import Precision, SaveDtype
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.precision.step_outcome import StepOutcome
from amp_launcher.typed import SettingsError

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)
"""Norms that Paddle keeps in float32 only where the half precision is float16. BatchNorm it always keeps so."""


class AutoCast(Precision):
    """o1: the model stays float32, and the operation lists decide each operation's dtype."""

    def forward(self) -> AbstractContextManager[Any]:
        level = "O1" if self.level == "o1" else "O2"
        cast = paddle.amp.auto_cast(level=level, dtype=self.dtype, **self.lists())
        return cast


class Decorated(AutoCast):
    """o2: a half-precision model with float32 master weights. o3, as nearly as Paddle has it: without them."""

    def __init__(self, resolved: ResolvedPrecision) -> None:
        super().__init__(resolved)
        self._optimizers: list[Any] = []

    def cast(self, model: nn.Layer, save_dtype: SaveDtype | None = None) -> nn.Layer:
        self.kept = {pattern: matching_layers(model, pattern) for pattern in self.resolved.amp.keep_fp32}
        excluded = {id(layer): layer for layers in self.kept.values() for layer in layers}
        if self.level == "o2":
            norms = (layer for layer in model.sublayers(include_self=True) if isinstance(layer, NORMS))
            excluded.update((id(norm), norm) for norm in norms)
        return paddle.amp.decorate(
            models=model,
            level="O2",
            dtype=self.dtype,
            save_dtype=save_dtype,
            excluded_layers=list(excluded.values()) or None,
        )

    def optimizer(self, model: nn.Layer, optimizer: Any) -> Any:
        _, optimizer = paddle.amp.decorate(
            models=[], optimizers=optimizer, level="O2", dtype=self.dtype, master_weight=self.resolved.master_weights
        )
        self._optimizers.append(optimizer)
        return optimizer

    def step(self, optimizer: Any) -> StepOutcome:
        if not any(optimizer is prepared for prepared in self._optimizers):  # it would step without master weights
            raise RuntimeError(
                "precision.step(optimizer) comes after optimizer = precision.optimizer(model, optimizer)"
            )
        return super().step(optimizer)


def matching_layers(model: nn.Layer, pattern: str) -> tuple[nn.Layer, ...]:
    """The layers whose names match. Raises `SettingsError` where none does."""
    layers = dict(model.named_sublayers())
    matching = tuple(layer for name, layer in layers.items() if fnmatchcase(name, pattern))
    if not matching:
        raise SettingsError(f"amp.keep_fp32: {pattern} matches no layer of {', '.join(layers)}", "amp.keep_fp32")
    return matching
