"""TensorFlow's graph rewrite, `auto_mixed_precision` in Grappler: what switches it on, and its lists of operations.

The pass reads its lists and then these variables each time it runs. An operation that is added to one list and still on
another makes the whole pass fail with only a line in the log, so it is taken off the three others as it is added.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence

import tensorflow as tf

LISTS = ("ALLOW", "DENY", "INFER", "CLEAR")
"""Converted always; never; unless they come after a denied one; where what is around them is."""
PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
OPTIONS = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}
"""By dtype: float16 is for GPUs, bfloat16 for CPUs."""


def variables(allow: Sequence[str], deny: Sequence[str]) -> dict[str, str]:
    """The environment that moves operations to the allow list and to the deny list."""
    found: dict[str, list[str]] = {}
    for target, operations in (("ALLOW", allow), ("DENY", deny)):
        for name in LISTS:
            if operations:
                found.setdefault(f"{PREFIX}_{name}LIST_{'ADD' if name == target else 'REMOVE'}", []).extend(operations)
    return {name: ",".join(operations) for name, operations in found.items()}


def switch_on(
    dtype: str, allow: Sequence[str], deny: Sequence[str], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Rewrite every graph of this process from here on: matrix products and convolutions to `dtype`."""
    for name in LISTS:
        for change in ("ADD", "REMOVE"):
            environ.pop(f"{PREFIX}_{name}LIST_{change}", None)  # an image's own would be moved a second time
    environ.update(variables(allow, deny))
    tf.config.optimizer.set_experimental_options({option: option == OPTIONS[dtype] for option in OPTIONS.values()})


def switch_off() -> None:
    """Leave every graph of this process from here on as it is."""
    tf.config.optimizer.set_experimental_options(dict.fromkeys(OPTIONS.values(), False))
