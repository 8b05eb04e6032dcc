"""Requests that no device can carry out, and saved loss scales that don't fit: refused with `SettingsError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from recipes.precision import operations
from recipes.precision.gemm import FORMATS, HALF
from recipes.precision.levels import MODES, Amp, LossScale, named_operations
from recipes.typed import SettingsError, plain, show

GEMM_LEVELS = ("o1", "o2")


def check(amp: Amp, scale: LossScale, framework: str = "torch") -> None:
    """Refuse what no device could carry out. Raises `SettingsError`.

    Operation names are TensorFlow's own there; torch and Paddle share one list of them, of which Paddle lacks some.
    """
    if amp.preset:
        named = MODES[amp.preset]
        for key in ("level", "dtype", "gemm"):
            value = getattr(amp, key)
            if value != getattr(named, key):
                # Only what goes together is advised.
                dtype = "" if amp.dtype == "auto" or amp.level == "o0" else f" amp.dtype={amp.dtype}"
                with_gemm = amp.level in GEMM_LEVELS and amp.dtype != "float16"
                gemm = "" if amp.gemm == HALF or not with_gemm else f" amp.gemm={amp.gemm}"
                raise SettingsError(
                    f"amp.{key}={value} with amp={amp.preset}, which is {getattr(named, key)}; "
                    f"say amp={amp.level}{dtype}{gemm}",
                    f"amp.{key}",
                )
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
    if amp.rounding == "stochastic":
        _check_rounding(amp, framework)
    _check_gemm(amp, framework)
    if framework == "tensorflow":
        _check_tensorflow(amp)
    elif framework == "paddle":
        _check_paddle(amp, scale)
    else:
        operations.lists(amp.allow, amp.deny)
    _check_scale(amp, scale, framework)


def _check_rounding(amp: Amp, framework: str) -> None:
    """Refuse stochastic rounding where it has no meaning or isn't supported."""
    why = ""
    if framework != "torch":
        why = f"is for torch, and this is framework={framework}; leave it out"
    elif amp.level in ("o0", "o1"):
        why = f"rounds half-precision weights, and those of amp={amp.level} are float32; say amp=o3, or leave it out"
    elif amp.level == "o2":
        why = "takes the place of the float32 masters of amp=o2; say amp=o3, or leave it out"
    elif amp.dtype == "float16":
        why = "needs bfloat16, whose range is that of float32; say amp.dtype=bfloat16, or leave it out"
    if why:
        raise SettingsError(f"amp.rounding=stochastic {why}", "amp.rounding")


def _check_gemm(amp: Amp, framework: str) -> None:
    """Refuse settings that conflict with a number format of linear layers' products."""
    if amp.gemm == HALF:
        if amp.gemm_exclude is not None:
            raise SettingsError(
                f"amp.gemm_exclude={show(amp.gemm_exclude)} with amp.gemm=half: no layer is converted, so none can be "
                "left out; say amp.gemm= or amp=fp8",
                "amp.gemm_exclude",
            )
        return
    if framework != "torch":
        raise SettingsError(
            f"amp.gemm={amp.gemm} is for framework=torch, and this is framework={framework}; say amp.gemm=half",
            "amp.gemm",
        )
    if amp.level not in GEMM_LEVELS:
        raise SettingsError(
            f"amp.gemm={amp.gemm} with amp={amp.level}: it needs float32 weights or masters, and bfloat16 elsewhere; "
            "say amp=o1 or amp=o2",
            "amp.gemm",
        )
    if amp.dtype == "float16":
        raise SettingsError(
            f"amp.gemm={amp.gemm} with amp.dtype=float16: what these formats round comes from bfloat16, whose range "
            "float16 lacks; say amp.dtype=bfloat16",
            "amp.dtype",
        )
    if FORMATS[amp.gemm].mechanism == "transformer_engine" and amp.gemm_exclude is not None:
        raise SettingsError(
            f"amp.gemm_exclude={show(amp.gemm_exclude)} with amp.gemm={amp.gemm}: TransformerEngine's modules all "
            "multiply in it, and no other layer does; leave it out",
            "amp.gemm_exclude",
        )
    for key in ("allow", "deny"):
        if "linear" in operations.canonical(getattr(amp, key), f"amp.{key}"):
            raise SettingsError(
                f"amp.{key}=[linear] with amp.gemm={amp.gemm}, which decides it for each linear layer; name layers in "
                "amp.gemm_exclude or amp.keep_fp32",
                f"amp.{key}",
            )


def _check_tensorflow(amp: Amp) -> None:
    """Refuse settings that Keras's policies and the graph rewrite don't support."""
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
    """Refuse settings that Paddle's `auto_cast`, `decorate` and `GradScaler` don't support."""
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


def check_saved_level(state: Mapping[str, Any], level: str, dtype: str) -> None:
    """Refuse a checkpoint's state that was saved at another level or in another dtype, or by a version that saved
    other keys. Raises `SettingsError`."""
    check_saved_keys(("level", "dtype", "scaler"), state)
    for key, own in (("level", level), ("dtype", dtype)):
        if state[key] != own:
            raise SettingsError(f"amp.{key}={own}, and the checkpoint was saved with {state[key]}", f"amp.{key}")


def check_saved_keys(own: Iterable[str], state: Mapping[str, Any]) -> None:
    """Refuse a saved state that lacks any of these keys. Raises `SettingsError`."""
    if missing := [key for key in own if key not in state]:
        raise SettingsError(
            f"the saved state of the precision has no {', '.join(missing)}: another version of the launcher saved it, "
            "and that version can load it"
        )


def check_saved_scale(own: LossScale, state: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Refuse to go on from the state of a loss scale that had other settings or lacks any of these keys, or of none.
    Raises `SettingsError`."""
    if not state:
        raise SettingsError(
            f"loss_scale.mode={own.mode}, and the checkpoint was saved without a loss scale", "loss_scale.mode"
        )
    check_saved_keys(["settings"], state)
    for key, value in plain(own).items():
        saved = state["settings"].get(key)
        if saved != value:
            raise SettingsError(
                f"loss_scale.{key}={show(value)}, and the checkpoint was saved with {show(saved)}", f"loss_scale.{key}"
            )
    check_saved_keys(keys, state)


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
