"""What each precision level means, what carries it out in each framework, and where it can't be had.

Standard library only: the launcher refuses with it before anything is queued, the trainer applies it.
The levels are those of apex (`apex/amp/frontend.py`); the mechanisms are each framework's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recipes.precision import operations
from recipes.typed import SettingsError, plain, setting, show

Level = Literal["o0", "o1", "o2", "o3"]
Dtype = Literal["auto", "float16", "bfloat16"]
Framework = Literal["torch", "tensorflow", "paddle"]
Device = Literal["cpu", "cuda"]
ScaleMode = Literal["auto", "dynamic", "static", "none"]

LEVELS: dict[str, str] = {
    "o0": "float32 throughout",
    "o1": "float32 model; matmul and convolution in half precision by operation lists",
    "o2": "half-precision model, float32 norms and float32 master weights",
    "o3": "half precision throughout, no master weights, no loss scale",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Amp:
    """The precision that was asked for."""

    level: Level = setting("o1", "o0 float32, o1 operation lists, o2 half model with float32 masters, o3 all half")
    dtype: Dtype = setting("auto", "auto takes float16 from compute capability 7.0, bfloat16 from 8.0 and on a CPU")
    allow: tuple[str, ...] = setting((), "operations to run in half precision, beyond the framework's own list")
    deny: tuple[str, ...] = setting((), "operations to keep in float32, whatever the framework's own list says")
    infer: tuple[str, ...] = setting((), "TensorFlow at o1: operations in half precision unless after a denied one")
    clear: tuple[str, ...] = setting((), "TensorFlow at o1: operations in the precision of those around them")
    keep_fp32: tuple[str, ...] = setting((), "patterns of module names to keep in float32, such as head.*")
    master_weights: bool | None = setting(None, "float32 master weights; null is the level's own answer (o2: true)")


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the legality table: a mechanism, or the reason why there is none."""

    mechanism: str = ""
    hole: str = ""


def mechanism(
    framework: str, level: str, dtype: str, xla: bool, device: str, master_weights: bool | None = None
) -> Row:
    """What carries `level` out in `framework`, with the dtype resolved (`float32` at o0) and a known device."""
    if framework == "torch":
        if xla:
            return Row(hole="xla=true is TensorFlow's compiler; for torch say compile=true")
        if level == "o0":
            return Row(mechanism="float32")
        if level == "o2" and master_weights is False:
            return Row(mechanism="half_model_no_masters")
        return Row(mechanism={"o1": "autocast", "o2": "half_model_fp32_masters", "o3": "half_model"}[level])
    if framework == "tensorflow":
        if level == "o0":
            return Row(mechanism="float32")
        if level == "o1":
            if device == "cpu" and dtype == "float16":
                return Row(hole="TensorFlow's graph rewrite is bfloat16 only on a CPU; say amp.dtype=bfloat16")
            if device == "cuda" and dtype == "bfloat16":
                return Row(hole="TensorFlow's graph rewrite is float16 only on a GPU; say amp.dtype=float16")
            if device == "cpu" and xla:
                return Row(hole="XLA bypasses the graph rewrite on a CPU and runs float32; say xla=false")
            return Row(mechanism="grappler")
        if device == "cpu" and xla:
            return Row(hole="XLA on a CPU runs half-precision layers in float32; say xla=false")
        return Row(mechanism="keras_policy")
    if framework == "paddle":
        if xla:
            return Row(hole="xla=true is TensorFlow's compiler; Paddle has no counterpart here")
        if level == "o0":
            return Row(mechanism="float32")
        if device == "cpu":
            return Row(hole="Paddle applies no mixed precision on a CPU; run on a GPU or say amp=o0")
        if level == "o2" and master_weights is False:
            return Row(mechanism="decorate_no_masters")
        return Row(mechanism={"o1": "auto_cast", "o2": "decorate_auto_cast", "o3": "decorate_no_masters"}[level])
    raise SettingsError(f"framework={framework} is not one of torch, tensorflow, paddle", "framework")


def resolve_dtype(
    level: str, dtype: str, device: str, capability: tuple[int, int] | None, framework: str = "torch"
) -> str:
    """`float32` at o0; else the dtype that `auto` means on this device.

    `capability` is the GPU's compute capability, for example (8, 0). Raises `SettingsError` where the device can't do
    what was asked. Source: NVIDIA's mixed precision training guide (tensor cores: fp16 from 7.0, bf16, TF32 from 8.0).
    """
    if level == "o0":
        return "float32"
    if device == "cpu":
        return "bfloat16" if dtype == "auto" else dtype
    if capability is not None and capability < (7, 0):
        raise SettingsError(
            f"amp={level} needs compute capability 7.0 for half-precision tensor cores, and this GPU has "
            f"{capability[0]}.{capability[1]}; say amp=o0",
            "amp",
        )
    if capability is not None and dtype == "bfloat16" and capability < (8, 0):
        raise SettingsError(
            f"amp.dtype=bfloat16 needs compute capability 8.0, and this GPU has {capability[0]}.{capability[1]}; "
            "say amp.dtype=float16",
            "amp.dtype",
        )
    if dtype != "auto":
        return dtype
    if framework == "tensorflow" and level == "o1":
        return "float16"  # the CUDA graph rewrite knows no other
    return "bfloat16" if capability is None or capability >= (8, 0) else "float16"


def resolve_scale(scale: LossScale, level: str, dtype: str, master_weights: bool | None = None) -> LossScale:
    """The loss scale with `auto` decided: dynamic for float16 where float32 gradients or masters exist, else none."""
    if scale.mode != "auto":
        return scale
    scaled = dtype == "float16" and (level == "o1" or (level == "o2" and master_weights is not False))
    return dataclasses.replace(scale, mode="dynamic" if scaled else "none")


def check(amp: Amp, scale: LossScale, framework: str = "torch") -> None:
    """Refuse what no device could carry out. Raises `SettingsError`.

    Operation names are TensorFlow's own there; torch and Paddle share one list of them, of which Paddle lacks some.
    """
    if amp.level == "o0" and amp.dtype != "auto":
        raise SettingsError(
            f"amp.dtype={amp.dtype} with amp=o0: o0 is float32; leave the dtype out, or say amp=o1", "amp.dtype"
        )
    if amp.level == "o0":
        for key in (*operations.TENSORFLOW_LISTS, "keep_fp32"):
            if value := getattr(amp, key):
                raise SettingsError(
                    f"amp.{key}={show(value)} with amp=o0: nothing runs in half precision there", f"amp.{key}"
                )
    for key in ("infer", "clear"):
        if framework != "tensorflow" and (value := getattr(amp, key)):
            raise SettingsError(
                f"amp.{key}={show(value)} is a list of TensorFlow's graph rewrite, and this is framework={framework}; "
                "say amp.allow or amp.deny",
                f"amp.{key}",
            )
    if amp.level == "o3" and (amp.allow or amp.deny):
        raise SettingsError(
            "amp.allow and amp.deny need operation lists, and amp=o3 has none; say amp=o1 or amp=o2", "amp.level"
        )
    if amp.master_weights is not None and amp.level != "o2":
        raise SettingsError(
            f"amp.master_weights={show(amp.master_weights)} with amp={amp.level}: only o2 has the choice",
            "amp.master_weights",
        )
    if framework == "tensorflow":
        _check_tensorflow(amp)
    elif framework == "paddle":
        _check_paddle(amp, scale)
    else:
        operations.lists(amp.allow, amp.deny)
    _check_scale(amp, scale, framework)


def named_operations(amp: Amp) -> dict[str, tuple[str, ...]]:
    """The operation lists of `amp` by their keys."""
    return {key: getattr(amp, key) for key in operations.TENSORFLOW_LISTS}


def _check_tensorflow(amp: Amp) -> None:
    """What Keras's policies and the graph rewrite have no way of doing."""
    lists = named_operations(amp)
    operations.tensorflow_lists(lists)
    if any(lists.values()) and amp.level != "o1":
        key = next(key for key, names in lists.items() if names)
        raise SettingsError(
            f"amp.{key} with amp={amp.level}: in TensorFlow only the graph rewrite of o1 has operation lists; say "
            "amp=o1, or at o2 amp.keep_fp32 with names of layers",
            f"amp.{key}",
        )
    if amp.keep_fp32 and amp.level != "o2":
        raise SettingsError(
            f"amp.keep_fp32={show(amp.keep_fp32)} with amp={amp.level}: in TensorFlow only the Keras policy of o2 goes "
            "by layers; say amp=o2, or at o1 amp.deny with operations",
            "amp.keep_fp32",
        )
    if amp.master_weights is False:
        raise SettingsError(
            "amp.master_weights=false: the variables of Keras's mixed policies are always float32; say amp=o3",
            "amp.master_weights",
        )


def _check_paddle(amp: Amp, scale: LossScale) -> None:
    """What Paddle's `auto_cast`, `decorate` and `GradScaler` have no way of doing."""
    operations.paddle_lists(amp.allow, amp.deny)
    if amp.keep_fp32 and amp.level == "o1":
        raise SettingsError(
            f"amp.keep_fp32={show(amp.keep_fp32)} with amp=o1: in Paddle only o2 and o3 go by layers; say amp=o2, or "
            "amp.deny with operations",
            "amp.keep_fp32",
        )
    if scale.per_optimizer:
        raise SettingsError(
            "loss_scale.per_optimizer=true: Paddle's scaler is one for all optimizers; leave it out",
            "loss_scale.per_optimizer",
        )
    for key in ("min", "max"):
        if getattr(scale, key) is not None:
            raise SettingsError(f"loss_scale.{key}: Paddle's scaler has no bounds; leave it out", f"loss_scale.{key}")
    if amp.dtype == "bfloat16" and scale.mode == "dynamic":
        raise SettingsError(
            "loss_scale.mode=dynamic: Paddle's scaler switches itself off for bfloat16, which needs none; say "
            "loss_scale=none, or amp.dtype=float16",
            "loss_scale.mode",
        )


def check_saved_scale(own: LossScale, state: Mapping[str, Any]) -> None:
    """Refuse to go on from the state of a loss scale that had other settings, or of none. Raises `SettingsError`.

    A setting that the state lacks is newer than it: it was saved under what is now the default.
    """
    if not state:
        raise SettingsError(
            f"loss_scale.mode={own.mode}, and the checkpoint was saved without a loss scale", "loss_scale.mode"
        )
    defaults = plain(LossScale())
    for key, value in plain(own).items():
        saved = state["settings"].get(key, defaults[key])
        if saved != value:
            raise SettingsError(
                f"loss_scale.{key}={show(value)}, and the checkpoint was saved with {show(saved)}", f"loss_scale.{key}"
            )


def _check_scale(amp: Amp, scale: LossScale, framework: str) -> None:
    if scale.per_optimizer and scale.mode == "none":
        raise SettingsError(
            "loss_scale.per_optimizer=true with loss_scale.mode=none: there is no scale; leave it out",
            "loss_scale.per_optimizer",
        )
    if scale.mode in ("dynamic", "static"):
        why = {
            "o0": "float32 gradients need no scale",
            "o2": "without master weights there are no float32 gradients to unscale into",
            "o3": "o3 has no float32 masters to unscale into",
        }.get(amp.level)
        # Paddle's scaler unscales half-precision gradients in place, as the O2 example of its guide has it.
        masterless = amp.level == "o2" and amp.master_weights is False and framework != "paddle"
        if why and (amp.level != "o2" or masterless):
            raise SettingsError(
                f"loss_scale.mode={scale.mode} with amp={amp.level}: {why}; say loss_scale=none", "loss_scale.mode"
            )
    for key in ("init", "growth", "backoff", "growth_every", "backoff_every", "min", "max"):
        value = getattr(scale, key)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise SettingsError(f"loss_scale.{key}={value} must be above zero and finite", f"loss_scale.{key}")
    if scale.growth <= 1:
        raise SettingsError(f"loss_scale.growth={scale.growth} must be above 1", "loss_scale.growth")
    if scale.backoff >= 1:
        raise SettingsError(f"loss_scale.backoff={scale.backoff} must be below 1", "loss_scale.backoff")
    low, high = scale.min or 0.0, scale.max or math.inf
    if not low <= scale.init <= high:
        raise SettingsError(
            f"loss_scale.init={scale.init} is outside loss_scale.min={show(scale.min)} to "
            f"loss_scale.max={show(scale.max)}",
            "loss_scale.init",
        )
