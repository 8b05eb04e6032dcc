"""Requests: a precision level with its options, and a loss scale.

The levels are those of apex (`apex/amp/frontend.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from amp_launcher.precision import operations
from amp_launcher.precision.gemm import Gemm
from amp_launcher.typed import SettingsError, not_a_choice, setting

Level = Literal["o0", "o1", "o2", "o3"]
Dtype = Literal["auto", "float16", "bfloat16"]
Name = Literal["fp32", "tf32", "fp16-mixed", "bf16-mixed", "fp16-true", "bf16-true", "fp8", "mxfp8", "nvfp4", "none"]
Framework = Literal["torch", "tensorflow", "paddle"]
Device = Literal["cpu", "cuda"]
Parallel = Literal["ddp", "fsdp"]
ScaleMode = Literal["auto", "dynamic", "static", "none"]

LEVELS: dict[Level, str] = {
    "o0": "float32 throughout",
    "o1": "float32 model; matmul and convolution in half precision by operation lists",
    "o2": "half-precision model, float32 norms and float32 master weights",
    "o3": "half precision throughout, no master weights, no loss scale",
}

NO_CLAIM: Name = "none"
"""The mode of a job that has none, such as preprocessing: nothing is applied to its script, and nothing observed."""

ENOUGH = 0.9
"""Share of the floating-point operations due in half precision that has to run so, unless `proof.share` is set.
Below 1, since some can't: on a CPU torch computes attention with dropout in float32."""


class Named(NamedTuple):
    """A mode by its name in other programs, in terms of our settings."""

    level: Level
    dtype: Dtype = "auto"
    tf32: bool | None = None
    """None leaves the key tf32 unchanged."""
    gemm: Gemm = "half"


# Source: Lightning's precision plugins, which write 16 and 32 for fp16 and fp32. Its 32-true leaves TF32 to the
# framework's settings; here it is off in fp32 and on in tf32.
MODES: dict[Name, Named] = {
    "fp32": Named("o0", tf32=False),
    "tf32": Named("o0", tf32=True),
    "fp16-mixed": Named("o1", "float16"),
    "bf16-mixed": Named("o1", "bfloat16"),
    "fp16-true": Named("o3", "float16"),
    "bf16-true": Named("o3", "bfloat16"),
    "fp8": Named("o2", "bfloat16", gemm="fp8-tensorwise"),
    "mxfp8": Named("o2", "bfloat16", gemm="mxfp8"),
    "nvfp4": Named("o2", "bfloat16", gemm="nvfp4"),
    NO_CLAIM: Named("o0"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Amp:
    """The precision that was asked for."""

    RETIRED: ClassVar = {"rounding": "nearest"}
    """Keys of 0.1.0, which plans and checkpoints have, with the value that they are read with."""

    level: Level = setting("o1", "o0 float32, o1 operation lists, o2 half model with float32 masters, o3 all half")
    dtype: Dtype = setting("auto", "auto takes float16 from compute capability 7.0, bfloat16 from 8.0 and on a CPU")
    allow: tuple[str, ...] = setting((), "operations to run in half precision, beyond the framework's own list")
    deny: tuple[str, ...] = setting((), "operations to keep in float32, whatever the framework's own list says")
    infer: tuple[str, ...] = setting((), "TensorFlow at o1: operations in half precision unless after a denied one")
    clear: tuple[str, ...] = setting((), "TensorFlow at o1: operations in the precision of those around them")
    keep_fp32: tuple[str, ...] = setting((), "patterns of module names to keep in float32, such as head.*")
    master_weights: bool | None = setting(None, "float32 master weights; null is the level's own answer (o2: true)")
    gemm: Gemm = setting("half", "number format of linear layers' matrix products, at o1 and o2 in bfloat16")
    gemm_exclude: tuple[str, ...] | None = setting(
        None, "patterns of linear layers to leave in half precision; null is the output layer, [] is none"
    )
    preset: Name | None = setting(None, "mode by the name that other programs have for it; null for o0 to o3")

    @property
    def asked(self) -> str:
        """The value of `amp=`."""
        return self.preset or self.level

    @property
    def claims(self) -> bool:
        """Whether the job is to compute in a mode."""
        return self.preset != NO_CLAIM


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScale:
    """How the loss is scaled, so that small float16 gradients don't vanish."""

    mode: ScaleMode = setting("auto", "auto is dynamic for float16 and none for bfloat16 and float32")
    init: float = setting(2.0**16, "first scale, and the only one when static")
    growth: float = setting(2.0, "factor after growth_every good steps in a row")
    backoff: float = setting(0.5, "factor after backoff_every bad steps in a row")
    growth_every: int = setting(2000, "good steps in a row before the scale grows")
    backoff_every: int = setting(1, "bad steps in a row before the scale shrinks; every bad step is skipped")
    min: float | None = setting(None, "the scale never shrinks below this")
    max: float | None = setting(None, "the scale never grows above this")
    per_optimizer: bool = setting(False, "a scale for each optimizer instead of one for all; not in Paddle")


# Sources: torch.amp.GradScaler; apex/amp/scaler.py (max 2^24); tf.mixed_precision.experimental.DynamicLossScale of
# TensorFlow 1, which never goes under 1; Keras's LossScaleOptimizer, which does; Paddle's AMP guide
# (incr_every_n_steps=1000, decr_every_n_nan_or_inf=2).
PRESETS: dict[str, LossScale] = {
    "auto": LossScale(),
    "dynamic": LossScale(mode="dynamic"),
    "static": LossScale(mode="static", init=128.0),
    "none": LossScale(mode="none"),
    "tf": LossScale(mode="dynamic", init=2.0**15, min=1.0),
    "keras": LossScale(mode="dynamic", init=2.0**15),
    "paddle": LossScale(mode="dynamic", init=2.0**15, growth_every=1000, backoff_every=2),
    "apex": LossScale(mode="dynamic", max=2.0**24),
}


def named_operations(amp: Amp) -> dict[str, tuple[str, ...]]:
    """The operation lists of `amp` by their keys."""
    return {key: getattr(amp, key) for key in operations.TENSORFLOW_LISTS}


def amp_named(name: str, tf32: bool | None) -> tuple[Amp, bool | None]:
    """The level or mode of that name, and what it says of TF32 where `tf32` doesn't. Raises `SettingsError`."""
    if level := next((level for level in LEVELS if level == name), None):
        return Amp(level=level), tf32
    preset = next((mode for mode in MODES if mode == name), None)
    if preset is None or preset == NO_CLAIM:
        choices = [*LEVELS, *(mode for mode in MODES if mode != NO_CLAIM)]
        raise SettingsError(not_a_choice("precision", name, choices), "amp")
    mode = MODES[preset]
    if tf32 is not None and mode.tf32 not in (None, tf32):
        raise SettingsError(f"tf32={tf32} with {name}, which says otherwise; leave it out")
    return Amp(level=mode.level, dtype=mode.dtype, gemm=mode.gemm, preset=preset), mode.tf32 if tf32 is None else tf32


def scale_named(name: str) -> LossScale:
    """The rule of a loss scale by its name. Raises `SettingsError`."""
    if name not in PRESETS:
        raise SettingsError(not_a_choice("loss_scale", name, PRESETS), "loss_scale")
    return PRESETS[name]
