"""TensorFlow's graph rewrite, Grappler's `auto_mixed_precision`: its switch, and its lists of operations.

The pass reads its lists and then these variables each time it runs. An operation that is added to one list and is still
on another makes the whole pass fail, with only a line in the log; so it is removed from the three others.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.client.session import BaseSession

LISTS = ("ALLOW", "DENY", "INFER", "CLEAR")
"""Always converted; never; unless behind a denied operation; like the operations around it."""
FORMER = ("WHITE", "BLACK", "GRAY")
"""Former names of three of these lists, which TensorFlow still reads."""
PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE"
VARIABLES = (
    *(f"{PREFIX}_{name}LIST_{change}" for name in (*LISTS, *FORMER) for change in ("ADD", "REMOVE")),
    f"{PREFIX}_LEVEL",
)
OPTIONS = {"float16": "auto_mixed_precision", "bfloat16": "auto_mixed_precision_onednn_bfloat16"}
"""The pass for each dtype: float16 is for GPUs, bfloat16 for CPUs."""


def variables(lists: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The environment that moves operations to the lists of `amp_launcher.precision.operations.TENSORFLOW_LISTS`."""
    environment: dict[str, list[str]] = {}
    for target, operations in lists.items():
        for name in LISTS:
            if operations:
                change = "ADD" if name == target.upper() else "REMOVE"
                environment.setdefault(f"{PREFIX}_{name}LIST_{change}", []).extend(operations)
    return {name: ",".join(operations) for name, operations in environment.items()}


def switch_on(dtype: str, lists: Mapping[str, Sequence[str]], environ: MutableMapping[str, str] = os.environ) -> None:
    """Rewrite every later graph of this process: matrix products and convolutions to `dtype`."""
    set_variables(variables(lists), environ)
    tf.config.optimizer.set_experimental_options({option: option == OPTIONS[dtype] for option in OPTIONS.values()})
    _switch_on_in_sessions(OPTIONS[dtype])


def switch_off() -> None:
    """Rewrite no later graph of this process."""
    tf.config.optimizer.set_experimental_options(dict.fromkeys(OPTIONS.values(), False))
    BaseSession.__init__ = getattr(BaseSession.__init__, "__wrapped__", BaseSession.__init__)


def _switch_on_in_sessions(option: str) -> None:
    """Switch the pass on in later sessions of TensorFlow 1 with a ConfigProto of their own, which replaces the options
    of this process, unless it says otherwise. TensorFlow's own function does the same for GPUs."""
    original = getattr(BaseSession.__init__, "__wrapped__", BaseSession.__init__)

    @functools.wraps(original)
    def init(self: BaseSession, target: Any = "", graph: Any = None, config: Any = None) -> None:
        if isinstance(config, tf.compat.v1.ConfigProto) and not getattr(config.graph_options.rewrite_options, option):
            own, config = config, tf.compat.v1.ConfigProto()
            config.CopyFrom(own)
            setattr(config.graph_options.rewrite_options, option, RewriterConfig.ON)
        original(self, target, graph, config)

    BaseSession.__init__ = init


def own_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables in this environment that change what is converted."""
    return {name: environ[name] for name in VARIABLES if name in environ}


def set_variables(wanted: Mapping[str, str], environ: MutableMapping[str, str] = os.environ) -> None:
    """Set these variables, and remove all others that an image or a shell has set to change what is converted."""
    for name in VARIABLES:
        environ.pop(name, None)
    environ.update(wanted)
