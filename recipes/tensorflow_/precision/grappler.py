"""TensorFlow's graph rewrite, `auto_mixed_precision` in Grappler: what switches it on, and its lists of operations.

The pass reads its lists and then these variables each time it runs. An operation that is added to one list and still on
another makes the whole pass fail with only a line in the log, so it is taken off the three others as it is added.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

import tensorflow as tf

LISTS = ("ALLOW", "DENY", "INFER", "CLEAR")
"""Converted always; never; unless they come after a denied one; where what is around them is."""
PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
OPTIONS = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}
"""By dtype: float16 is for GPUs, bfloat16 for CPUs."""


FORMER = ("WHITE", "BLACK", "GRAY")
"""What TensorFlow called three of its lists, and still reads."""
VARIABLES = (
    *(f"{PREFIX}_{name}LIST_{change}" for name in (*LISTS, *FORMER) for change in ("ADD", "REMOVE")),
    f"{PREFIX}_LEVEL",
)


def variables(lists: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The environment that moves operations to the lists of `recipes.precision.operations.TENSORFLOW_LISTS`."""
    found: dict[str, list[str]] = {}
    for target, operations in lists.items():
        for name in LISTS:
            if operations:
                change = "ADD" if name == target.upper() else "REMOVE"
                found.setdefault(f"{PREFIX}_{name}LIST_{change}", []).extend(operations)
    return {name: ",".join(operations) for name, operations in found.items()}


def switch_on(dtype: str, lists: Mapping[str, Sequence[str]], environ: MutableMapping[str, str] = os.environ) -> None:
    """Rewrite every graph of this process from here on: matrix products and convolutions to `dtype`."""
    set_variables(variables(lists), environ)  # and not what an image or a shell has set beside it
    tf.config.optimizer.set_experimental_options({option: option == OPTIONS[dtype] for option in OPTIONS.values()})


def own_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables in this environment that change what is converted."""
    return {name: environ[name] for name in VARIABLES if name in environ}


def set_variables(wanted: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Have these variables, and no others that change what is converted."""
    for name in VARIABLES:
        environ.pop(name, None)
    environ.update(wanted)


def switch_off() -> None:
    """Leave every graph of this process from here on as it is."""
    tf.config.optimizer.set_experimental_options(dict.fromkeys(OPTIONS.values(), False))
