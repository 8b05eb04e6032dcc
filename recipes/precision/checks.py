"""Requests that no device can carry out, and saved loss scales that don't fit: refused with `SettingsError`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from recipes.precision import operations
from recipes.precision.gemm import FORMATS, HALF
from recipes.precision.levels import MODES, Amp, LossScale, named_operations
from recipes.typed import SettingsError, plain, show

GEMM_LEVELS = ("o1", "o2")


class Rule(NamedTuple):
    """A refusal of a setting under a condition."""

    key: str
    refused: object
    """Whether it is, by its truth."""
    why: str
    """How the sentence goes on after the key and its value."""


def check(amp: Amp, scale: LossScale, framework: str = "torch") -> None:
    """Refuse what no device could carry out. Raises `SettingsError`.

    Operation names are TensorFlow's own there; torch and Paddle share one list of them, of which Paddle lacks some.
    """
    if amp.preset:
        _check_preset(amp)
    for group, settings, rules in (
        ("amp", amp, _of_levels(amp, framework)),
        ("amp", amp, _of_gemm(amp, framework)),
        ("amp", amp, _of_frameworks(amp, framework)),
        ("loss_scale", scale, _of_scale(amp, scale, framework)),
    ):
        for key, refused, why in rules:
            if refused:
                raise SettingsError(f"{group}.{key}={show(getattr(settings, key))} {why}", f"{group}.{key}")


def _check_preset(amp: Amp) -> None:
    """Refuse single keys that contradict the mode that was named. Raises `SettingsError`."""
    assert amp.preset is not None
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


def _of_levels(amp: Amp, framework: str) -> Iterator[Rule]:
    level, lists = amp.level, operations.TENSORFLOW_LISTS
    yield Rule(
        "dtype", level == "o0" and amp.dtype != "auto", "with amp=o0: o0 is float32; leave the dtype out, or say amp=o1"
    )
    for key in (*lists, "keep_fp32"):
        yield Rule(key, level == "o0" and getattr(amp, key), "with amp=o0: nothing runs in half precision there")
    for key in ("infer", "clear"):
        yield Rule(
            key,
            framework != "tensorflow" and getattr(amp, key),
            f"is a list of TensorFlow's graph rewrite, and this is framework={framework}; say amp.allow or amp.deny",
        )
    for key in ("allow", "deny"):
        yield Rule(
            key, level == "o3" and getattr(amp, key), "needs operation lists, and amp=o3 has none; say amp=o1 or amp=o2"
        )
    yield Rule(
        "master_weights", amp.master_weights is not None and level != "o2", f"with amp={level}: only o2 has the choice"
    )
    if amp.rounding == "stochastic":
        yield Rule("rounding", framework != "torch", f"is for torch, and this is framework={framework}; leave it out")
        yield Rule(
            "rounding",
            level in ("o0", "o1"),
            f"rounds half-precision weights, and those of amp={level} are float32; say amp=o3, or leave it out",
        )
        yield Rule(
            "rounding", level == "o2", "takes the place of the float32 masters of amp=o2; say amp=o3, or leave it out"
        )
        yield Rule(
            "rounding",
            amp.dtype == "float16",
            "needs bfloat16, whose range is that of float32; say amp.dtype=bfloat16, or leave it out",
        )


def _of_gemm(amp: Amp, framework: str) -> Iterator[Rule]:
    """What conflicts with a number format of linear layers' products, or needs one."""
    named = f"amp.gemm={amp.gemm}"
    if amp.gemm == HALF:
        yield Rule(
            "gemm_exclude",
            amp.gemm_exclude is not None,
            f"with {named}: no layer is converted, so none can be left out; say amp.gemm= or amp=fp8",
        )
        return
    yield Rule(
        "gemm", framework != "torch", f"is for framework=torch, and this is framework={framework}; say amp.gemm=half"
    )
    yield Rule(
        "gemm",
        amp.level not in GEMM_LEVELS,
        f"with amp={amp.level}: it needs float32 weights or masters, and bfloat16 elsewhere; say amp=o1 or amp=o2",
    )
    yield Rule(
        "dtype",
        amp.dtype == "float16",
        f"with {named}: what these formats round comes from bfloat16, whose range float16 lacks; "
        "say amp.dtype=bfloat16",
    )
    yield Rule(
        "gemm_exclude",
        FORMATS[amp.gemm].mechanism == "transformer_engine" and amp.gemm_exclude is not None,
        f"with {named}: TransformerEngine's modules all multiply in it, and no other layer does; leave it out",
    )
    for key in ("allow", "deny"):
        yield Rule(
            key,
            "linear" in operations.canonical(getattr(amp, key), f"amp.{key}"),
            f"with {named}, which decides it for each linear layer; name layers in amp.gemm_exclude or amp.keep_fp32",
        )


def _of_frameworks(amp: Amp, framework: str) -> Iterator[Rule]:
    """What Keras's policies, the graph rewrite, and Paddle's `auto_cast` and `decorate` don't support; names of
    operations, too, are refused here."""
    if framework == "tensorflow":
        lists = named_operations(amp)
        operations.tensorflow_lists(lists)
        for key, names in lists.items():
            yield Rule(
                key,
                names and amp.level != "o1",
                f"with amp={amp.level}: in TensorFlow only o1's graph rewrite has operation lists; say amp=o1, or "
                "amp.keep_fp32=[LAYER] at o2",
            )
        yield Rule(
            "keep_fp32",
            amp.keep_fp32 and amp.level != "o2",
            f"with amp={amp.level}: in TensorFlow only the Keras policy of o2 goes by layers; say amp=o2, or at o1 "
            "amp.deny with operations",
        )
        yield Rule(
            "master_weights",
            amp.master_weights is False,
            "with framework=tensorflow: the variables of Keras's mixed policies are always float32; say amp=o3",
        )
    elif framework == "paddle":
        operations.paddle_lists(amp.allow, amp.deny)
        yield Rule(
            "keep_fp32",
            amp.keep_fp32 and amp.level == "o1",
            "with amp=o1: in Paddle only o2 and o3 go by layers; say amp=o2, or amp.deny with operations",
        )
    else:
        operations.lists(amp.allow, amp.deny)


def _of_scale(amp: Amp, scale: LossScale, framework: str) -> Iterator[Rule]:
    if framework == "paddle":
        here = "with framework=paddle: Paddle's scaler"
        yield Rule("per_optimizer", scale.per_optimizer, f"{here} is one for all optimizers; leave it out")
        for key in ("min", "max"):
            yield Rule(key, getattr(scale, key) is not None, f"{here} has no bounds; leave it out")
        yield Rule(
            "mode",
            amp.dtype == "bfloat16" and scale.mode == "dynamic",
            f"{here} switches itself off for bfloat16, which needs none; say loss_scale=none, or amp.dtype=float16",
        )
    yield Rule(
        "per_optimizer",
        scale.per_optimizer and scale.mode == "none",
        "with loss_scale.mode=none: there is no scale; leave it out",
    )
    # Paddle's scaler unscales half-precision gradients in place, as the O2 example of its guide has it.
    masterless = amp.master_weights is False and framework != "paddle"
    needless = {
        "o0": "float32 gradients need no scale",
        "o2": "without master weights there are no float32 gradients to unscale into" if masterless else "",
        "o3": "o3 has no float32 masters to unscale into",
    }.get(amp.level)
    yield Rule(
        "mode",
        needless and scale.mode in ("dynamic", "static"),
        f"with amp={amp.level}: {needless}; say loss_scale=none",
    )
    for key in ("init", "growth", "backoff", "growth_every", "backoff_every", "min", "max"):
        value = getattr(scale, key)
        positive = value is None or (math.isfinite(value) and value > 0)
        yield Rule(key, not positive, "must be above zero and finite")
    yield Rule("growth", scale.growth <= 1, "must be above 1")
    yield Rule("backoff", scale.backoff >= 1, "must be below 1")
    yield Rule(
        "init",
        not (scale.min or 0.0) <= scale.init <= (scale.max or math.inf),
        f"is outside loss_scale.min={show(scale.min)} to loss_scale.max={show(scale.max)}",
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
