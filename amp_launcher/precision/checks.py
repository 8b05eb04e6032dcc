"""Requests that no device can carry out, and saved loss scales that don't fit: refused with `SettingsError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from amp_launcher.precision import operations
from amp_launcher.precision.gemm import FORMATS, HALF
from amp_launcher.precision.levels import MODES, Amp, LossScale, named_operations
from amp_launcher.typed import SettingsError, not_a_choice, plain, show

Rules = Iterator[tuple[tuple[str, ...], str]]
"""Keys that can't be set here, and how the sentence goes on after a key and its value."""


def check_precision(amp: Amp, scale: LossScale, framework: str = "torch") -> None:
    """Refuse what no device could carry out. Raises `SettingsError`.

    Operation names are TensorFlow's own there; torch and Paddle share one list of them, of which Paddle lacks some.
    """
    if amp.gemm not in (HALF, *FORMATS):
        raise SettingsError(not_a_choice("amp.gemm", amp.gemm, (HALF, *FORMATS)), "amp.gemm")
    if amp.preset:
        _check_preset(amp)
    unset = Amp()
    for keys, why in chain(_of_levels(amp, framework), _of_gemm(amp, framework), _of_frameworks(amp, framework)):
        for key in keys:
            if getattr(amp, key) != getattr(unset, key):
                raise SettingsError(f"amp.{key}={show(getattr(amp, key))} {why}", f"amp.{key}")
    for key, why in _of_scale(amp, scale, framework):
        raise SettingsError(f"loss_scale.{key}={show(getattr(scale, key))} {why}", f"loss_scale.{key}")


def _check_preset(amp: Amp) -> None:
    """Refuse single keys that contradict the mode that was named. Raises `SettingsError`."""
    assert amp.preset is not None
    named = MODES[amp.preset]
    for key in ("level", "dtype", "gemm"):
        value = getattr(amp, key)
        if value != getattr(named, key):
            # Only what goes together is advised.
            dtype = "" if amp.dtype == "auto" or amp.level == "o0" else f" amp.dtype={amp.dtype}"
            with_gemm = amp.gemm != HALF and amp.level in FORMATS[amp.gemm].levels and amp.dtype != "float16"
            gemm = f" amp.gemm={amp.gemm}" if with_gemm else ""
            raise SettingsError(
                f"amp.{key}={value} with amp={amp.preset}, which is {getattr(named, key)}; "
                f"say amp={amp.level}{dtype}{gemm}",
                f"amp.{key}",
            )


def _of_levels(amp: Amp, framework: str) -> Rules:
    level, lists = amp.level, operations.TENSORFLOW_LISTS
    if level == "o0":
        yield ("dtype",), "with amp=o0: o0 is float32; leave the dtype out, or say amp=o1"
        yield (*lists, "keep_fp32"), "with amp=o0: nothing runs in half precision there"
    if framework != "tensorflow":
        here = f"and this is framework={framework}; say amp.allow or amp.deny"
        yield ("infer", "clear"), f"is a list of TensorFlow's graph rewrite, {here}"
    if level == "o3":
        yield ("allow", "deny"), "needs operation lists, and amp=o3 has none; say amp=o1 or amp=o2"
    if level != "o2":
        yield ("master_weights",), f"with amp={level}: only o2 has the choice"


def _of_gemm(amp: Amp, framework: str) -> Rules:
    """What conflicts with a number format of linear layers' products, or needs one."""
    named = f"with amp.gemm={amp.gemm}"
    if amp.gemm == HALF:
        yield ("gemm_exclude",), f"{named}: no layer is converted, so none can be left out; say amp.gemm= or amp=fp8"
        return
    if framework != "torch":
        yield ("gemm",), f"is for framework=torch, and this is framework={framework}; say amp.gemm=half"
    levels = FORMATS[amp.gemm].levels
    if amp.level not in levels:
        needs = "it needs float32 weights or masters, and bfloat16 elsewhere"
        if amp.level == "o1":
            needs = "its layers take weights in bfloat16, and those of o1 are float32"
        yield ("gemm",), f"with amp={amp.level}: {needs}; say {' or '.join(f'amp={level}' for level in levels)}"
    if amp.dtype == "float16":
        why = "what these formats round comes from bfloat16, whose range float16 lacks"
        yield ("dtype",), f"{named}: {why}; say amp.dtype=bfloat16"
    for key in ("allow", "deny"):
        if "linear" in operations.canonical(getattr(amp, key), f"amp.{key}"):
            instead = "name layers in amp.gemm_exclude or amp.keep_fp32"
            yield (key,), f"{named}, which decides it for each linear layer; {instead}"


def _of_frameworks(amp: Amp, framework: str) -> Rules:
    """What Keras's policies, the graph rewrite, and Paddle's `auto_cast` and `decorate` don't support; names of
    operations, too, are refused here."""
    if framework == "torch":
        operations.lists(amp.allow, amp.deny)
    elif framework == "paddle":
        operations.paddle_lists(amp.allow, amp.deny)
        if amp.level == "o1":
            only = "in Paddle only o2 and o3 go by layers"
            yield ("keep_fp32",), f"with amp=o1: {only}; say amp=o2, or amp.deny with operations"
    else:
        operations.tensorflow_lists(named_operations(amp))
        if amp.level != "o1":
            only = f"with amp={amp.level}: in TensorFlow only o1's graph rewrite has operation lists"
            yield operations.TENSORFLOW_LISTS, f"{only}; say amp=o1, or amp.keep_fp32=[LAYER] at o2"
        if amp.level != "o2":
            only = f"with amp={amp.level}: in TensorFlow only the Keras policy of o2 goes by layers"
            yield ("keep_fp32",), f"{only}; say amp=o2, or at o1 amp.deny with operations"
        if amp.master_weights is False:
            always = "the variables of Keras's mixed policies are always float32"
            yield ("master_weights",), f"with framework=tensorflow: {always}; say amp=o3"


def _of_scale(amp: Amp, scale: LossScale, framework: str) -> Iterator[tuple[str, str]]:
    """Keys whose value can't be carried out, and how the sentence goes on after it."""
    if framework == "paddle":
        here = "with framework=paddle: Paddle's scaler"
        if scale.per_optimizer:
            yield "per_optimizer", f"{here} is one for all optimizers; leave it out"
        for key in ("min", "max"):
            if getattr(scale, key) is not None:
                yield key, f"{here} has no bounds; leave it out"
        if amp.dtype == "bfloat16" and scale.mode in ("dynamic", "static"):
            off = "switches itself off for bfloat16, which needs none"
            yield "mode", f"{here} {off}; say loss_scale=none, or amp.dtype=float16"
    if scale.per_optimizer and scale.mode == "none":
        yield "per_optimizer", "with loss_scale.mode=none: there is no scale; leave it out"
    # Paddle's scaler unscales half-precision gradients in place, as the O2 example of its guide has it.
    masterless = amp.master_weights is False and framework != "paddle"
    needless = {
        "o0": "float32 gradients need no scale",
        "o2": "without master weights there are no float32 gradients to unscale into" if masterless else "",
        "o3": "o3 has no float32 masters to unscale into",
    }.get(amp.level)
    if needless and scale.mode in ("dynamic", "static"):
        yield "mode", f"with amp={amp.level}: {needless}; say loss_scale=none"
    for key in ("init", "growth", "backoff", "growth_every", "backoff_every", "min", "max"):
        value = getattr(scale, key)
        if value is not None and not 0 < value < math.inf:
            yield key, "must be above zero and finite"
    if scale.growth <= 1:
        yield "growth", "must be above 1"
    if scale.backoff >= 1:
        yield "backoff", "must be below 1"
    if not (scale.min or 0.0) <= scale.init <= (scale.max or math.inf):
        yield "init", f"is outside loss_scale.min={show(scale.min)} to loss_scale.max={show(scale.max)}"


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
        raise SettingsError(f"loss_scale.mode={own.mode}, and the checkpoint was saved without a loss scale")
    check_saved_keys(["settings"], state)
    for key, value in plain(own).items():
        saved = state["settings"].get(key)
        if saved != value:
            raise SettingsError(
                f"loss_scale.{key}={show(value)}, and the checkpoint was saved with {show(saved)}", f"loss_scale.{key}"
            )
    check_saved_keys(keys, state)
