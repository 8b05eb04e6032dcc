"""o1, o2 and o3 as mechanisms, and the one of a resolved precision."""

from __future__ import annotations

from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any

import paddle
from paddle import nn
from paddle.base import core

from amp_launcher.paddle.precision.base import Mechanism
from amp_launcher.precision.resolved import ResolvedPrecision
from amp_launcher.typed import SettingsError

NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1D, nn.InstanceNorm2D, nn.InstanceNorm3D)
"""Norms that Paddle keeps in float32 only where the half precision is float16. BatchNorm it always keeps so."""


class AutoCast(Mechanism):
    """o1: the model stays float32, and the operation lists decide each operation's dtype. Paddle casts the inputs."""

    def forward(self) -> AbstractContextManager[Any]:
        level = "O1" if self.level == "o1" else "O2"
        cast = paddle.amp.auto_cast(level=level, dtype=self.dtype, **self.lists())
        return cast


class Decorated(AutoCast):
    """o2: a half-precision model with float32 master weights. o3, as nearly as Paddle has it: without them."""

    half_weights = True

    def cast(self, model: nn.Layer) -> None:
        self.kept = {pattern: matching_layers(model, pattern) for pattern in self.resolved.amp.keep_fp32}
        excluded = {id(layer): layer for layers in self.kept.values() for layer in layers}
        if self.level == "o2":
            norms = (layer for layer in model.sublayers(include_self=True) if isinstance(layer, NORMS))
            excluded.update((id(norm), norm) for norm in norms)
        paddle.amp.decorate(models=model, level="O2", dtype=self.dtype, excluded_layers=list(excluded.values()) or None)

    def add(self, optimizer: Any) -> None:
        super().add(optimizer)
        paddle.amp.decorate(
            models=[], optimizers=optimizer, level="O2", dtype=self.dtype, master_weight=self.resolved.master_weights
        )


MECHANISMS: dict[str, type[Mechanism]] = {"o0": Mechanism, "o1": AutoCast, "o2": Decorated, "o3": Decorated}
"""The class of each level."""


def mechanism_of(resolved: ResolvedPrecision) -> Mechanism:
    """What carries out a resolved precision (`amp_launcher.precision.resolved`). Sets Paddle's TF32 switches, which are
    on by default, for the whole process."""
    core.set_cublas_switch(bool(resolved.tf32))
    core.set_cudnn_switch(bool(resolved.tf32))
    return MECHANISMS[resolved.level](resolved)


def matching_layers(model: nn.Layer, pattern: str) -> tuple[nn.Layer, ...]:
    """The layers whose names match. Raises `SettingsError` where none does."""
    layers = dict(model.named_sublayers())
    matching = tuple(layer for name, layer in layers.items() if fnmatchcase(name, pattern))
    if not matching:
        raise SettingsError(f"amp.keep_fp32: {pattern} matches no layer of {', '.join(layers)}")
    return matching
