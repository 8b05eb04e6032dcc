"""XLA: how it is switched on, and where it dumps the programs that it compiled.

With `jit_compile` a whole step is one cluster. That bypasses the graph rewrite of o1, and can't contain communication
between replicas. In these cases XLA compiles clusters of the rewritten graph, which it does on GPUs only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

import tensorflow as tf

from amp_launcher.typed import SettingsError

FLAGS = "XLA_FLAGS"
OWN_FLAGS = "TF_XLA_FLAGS"


def dump_programs(on: bool, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have XLA dump each program that it compiles into a folder that is removed with this process.

    Call it before anything is compiled: XLA reads its flags once. Raises `SettingsError` where the flags name a folder
    without text dumps.
    """
    if not on or folder(environ):
        return
    if "--xla_dump_to" in environ.get(FLAGS, ""):
        raise SettingsError(
            f"{FLAGS}={environ[FLAGS]}: xla=true needs --xla_dump_hlo_as_text with it, to see what XLA compiled", "xla"
        )
    dumps = tempfile.mkdtemp(prefix="xla-")
    atexit.register(shutil.rmtree, dumps, ignore_errors=True)
    environ[FLAGS] = f"{environ.get(FLAGS, '')} --xla_dump_to={dumps} --xla_dump_hlo_as_text".strip()
    # Compile clusters at their first execution, in a step that is observed, and not after several executions.
    environ[OWN_FLAGS] = f"{environ.get(OWN_FLAGS, '')} --tf_xla_enable_lazy_compilation=false".strip()


def folder(environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """The folder into which XLA dumps programs; None if it doesn't."""
    flags = environ.get(FLAGS, "").split()
    if "--xla_dump_hlo_as_text" not in flags:
        return None
    return next((Path(flag.partition("=")[2]) for flag in flags if flag.startswith("--xla_dump_to=")), None)


def compiles_whole_steps(xla: bool, level: str, devices: int) -> bool:
    """Whether each step is compiled as one cluster."""
    return xla and level != "o1" and devices == 1


def configure(xla: bool, level: str, kind: str, devices: int) -> None:
    """Have XLA find clusters where whole steps aren't compiled. Raises `SettingsError` where it can't."""
    clusters = xla and not compiles_whole_steps(xla, level, devices)
    if clusters and kind == "cpu":
        raise SettingsError(f"xla=true on {devices} CPU devices: XLA finds clusters on GPUs only; say xla=false")
    tf.config.optimizer.set_jit("autoclustering" if clusters else False)
