"""Which linear layers of a model `amp.gemm` converts, and which it leaves in half precision, with the reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amp_launcher.precision.gemm import FORMATS
from amp_launcher.precision.levels import Amp
from amp_launcher.shown import some
from amp_launcher.typed import SettingsError, nearest

NAMED = 4
"""Layers that a sentence names; the others are counted."""


class Linear(NamedTuple):
    """A linear layer's sizes."""

    inputs: int
    outputs: int
    rows: int = 0
    """Of a micro-batch on one device; 0 where that isn't known."""
    unfit: str = ""
    """Why it can't be converted; empty where it can."""


class Chosen(NamedTuple):
    """Which linear layers of a model a format converts."""

    converted: tuple[str, ...]
    left_out: Mapping[str, str]
    """By name, why not."""


NO_LAYERS = Chosen((), {})


def choose(amp: Amp, layers: Mapping[str, Linear], model: str) -> Chosen:
    """The layers that `amp.gemm` converts, of `layers` by their names in `model`, which an error names.

    Without `amp.gemm_exclude` the last of them, the output layer, stays: logits have the widest range, and the loss is
    computed from them. So do layers of sizes that the format can't take. Raises `SettingsError` for a pattern that
    names no layer, for a number of rows that the format can't take, and where no layer is left.
    """
    exclude, asked, multiple = amp.gemm_exclude, f"amp.gemm={amp.gemm}", FORMATS[amp.gemm].multiple
    half = f"amp={amp.level}" if amp.preset else "amp.gemm=half"
    if not layers:
        raise SettingsError(f"{asked}: {model} has no linear layers; say {half}", "amp.gemm")
    for pattern in exclude or ():
        if not any(_within(layer, pattern) for layer in layers):
            known = some(list(layers))
            raise SettingsError(
                f"amp.gemm_exclude: {pattern} names no linear layer of {model}{nearest(pattern, layers)} "
                f"(linear layers: {known})"
            )
    left_out = {}
    for layer, sizes in layers.items():
        if exclude is None and layer == list(layers)[-1]:
            left_out[layer] = "the output layer"
        elif pattern := next((name for name in exclude or () if _within(layer, name)), ""):
            left_out[layer] = f"amp.gemm_exclude={pattern}"
        elif pattern := next((name for name in amp.keep_fp32 if _within(layer, name)), ""):
            left_out[layer] = f"amp.keep_fp32={pattern}"
        elif why := _unfit(sizes, multiple):
            left_out[layer] = why
    converted = {layer: sizes for layer, sizes in layers.items() if layer not in left_out}
    if not converted:
        why = "; ".join(f"{layer}: {reason}" for layer, reason in list(left_out.items())[:NAMED])
        fits = exclude != () and any(not _unfit(sizes, multiple) for sizes in layers.values())
        instead = ", or amp.gemm_exclude=[] to leave out none" if fits else ""
        raise SettingsError(
            f"{asked} has nothing to convert: every linear layer of {model} is left out ({why}); say {half}{instead}",
            "amp.gemm" if exclude is None else "amp.gemm_exclude",
        )
    _refuse_rows(amp, converted, model)
    return Chosen(tuple(converted), left_out)


def _refuse_rows(amp: Amp, layers: Mapping[str, Linear], model: str) -> None:
    name, multiple = amp.gemm, FORMATS[amp.gemm].multiple
    rows = {sizes.rows for sizes in layers.values() if sizes.rows % multiple}
    if rows and FORMATS[name].rows_matter:
        level = f"amp={amp.level} " if amp.preset else ""
        raise SettingsError(
            f"amp.gemm={name} sums a weight's gradient over the rows of a micro-batch, which must be a multiple of "
            f"{multiple}, and {model} has {min(rows)} on a device; change batch, or say "
            f"{level}amp.gemm=fp8-rowwise-gw-hp, which sums in bfloat16",
            "batch",
        )


def _unfit(layer: Linear, multiple: int) -> str:
    """Why a layer can't be converted; empty where it can."""
    odd = layer.inputs % multiple or layer.outputs % multiple
    return layer.unfit or (f"{layer.inputs} -> {layer.outputs}, not in multiples of {multiple}" if odd else "")


def _within(layer: str, pattern: str) -> bool:
    """Whether the pattern names the layer or a module that it is in."""
    parts = layer.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[: end + 1]), pattern) for end in range(len(parts)))


def line(name: str, converted: Sequence[str], left_out: Mapping[str, str]) -> str:
    """The choice for people, in one line."""
    kept = some([f"{layer} ({why})" for layer, why in left_out.items()])
    count = f"{len(converted)} linear layer{'s' * (len(converted) != 1)}"
    return f"amp.gemm={name}: {count} converted; left in half precision: {kept or 'none'}"
