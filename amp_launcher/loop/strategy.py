"""The base of TensorFlow's `Precision`: how one is made from a request."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from amp_launcher.precision import listeners
from amp_launcher.precision.levels import Amp, LossScale
from amp_launcher.precision.resolved import ResolvedPrecision, resolve
from amp_launcher.spec import read_spec


class Strategy(ABC):
    """A resolved precision that a framework applies.

    `resolved` has all settings; `level`, `dtype` (float32 at o0) and `device` (cpu or cuda) are here for scripts.
    """

    framework: ClassVar[str]
    _capability_of: ClassVar[Any]
    """The compute capability of a GPU, None for a CPU. Raises `SettingsError` for a device that isn't there."""
    _kind_of: ClassVar[Any]
    """cpu or cuda, from auto, cpu or cuda."""
    by_level: ClassVar[Mapping[str, type[Any]]]
    """The framework's class for each level, from its package's `__init__`."""

    def __init__(self, resolved: ResolvedPrecision) -> None:
        self.resolved = resolved
        self.level = resolved.level
        self.dtype = resolved.dtype
        self.device = resolved.device

    @classmethod
    def of(
        cls,
        amp: Amp,
        loss_scale: LossScale,
        device: str,
        *,
        tf32: bool | None = None,
        xla: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Any:
        """The level of `amp`, resolved for `device` (cpu or cuda) and applied as by `apply`.

        `tf32` None is off at o0 and on elsewhere; `xla` says that XLA will compile. Raises `SettingsError` for what
        can't be had.
        """
        return cls.apply(
            resolve(
                amp,
                loss_scale,
                framework=cls.framework,
                device=device,
                capability=cls._capability_of(device),
                environ=environ,
                tf32=tf32,
                xla=xla,
            )
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Any:
        """The precision of the launcher's request, for a script of your own.

        Reads the JSON file whose path is in LAUNCHER_SPEC. Raises `SettingsError` where that isn't set.
        """
        settings = read_spec(environ, cls.framework)
        device, tf32, xla = cls._kind_of(settings.device), settings.tf32, settings.xla
        made = cls.of(settings.amp, settings.loss_scale, device, tf32=tf32, xla=xla, environ=environ)
        listeners.tell(made)
        return made

    @classmethod
    def apply(cls, resolved: ResolvedPrecision) -> Any:
        """The precision of the resolved level, with the framework's switches for the whole process set to it.

        Raises `SettingsError` for an operation of the lists that the framework doesn't have.
        """
        mechanism = cls.by_level[resolved.level]
        mechanism._switch(resolved)
        return mechanism(resolved)

    @classmethod
    @abstractmethod
    def _switch(cls, resolved: ResolvedPrecision) -> None:
        """Set the framework's switches, as of TF32, for the whole process."""
