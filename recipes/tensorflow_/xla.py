"""XLA: what has it compile, and where it writes down what it compiled.

With `jit_compile` a whole step is one cluster. That bypasses the graph rewrite of o1, and can't hold what several
replicas do together; there XLA is given clusters of the rewritten graph instead, which it does on GPUs only.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

import tensorflow as tf

from recipes.typed import SettingsError

FLAGS = "XLA_FLAGS"
OWN_FLAGS = "TF_XLA_FLAGS"


def watch(on: bool, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have XLA write each program that it compiled into a folder that goes with this process.

    To be called before anything is compiled: XLA reads its flags once. Raises `SettingsError` where it's already told
    another folder.
    """
    if not on or folder(environ):
        return
    if "--xla_dump_to" in environ.get(FLAGS, ""):
        raise SettingsError(
            f"{FLAGS}={environ[FLAGS]}: xla=true needs --xla_dump_hlo_as_text with it, to see what XLA compiled", "xla"
        )
    made = tempfile.mkdtemp(prefix="xla-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    environ[FLAGS] = f"{environ.get(FLAGS, '')} --xla_dump_to={made} --xla_dump_hlo_as_text".strip()
    # Clusters are compiled as they are first met, and not when they have proved worth it: in a step that is watched.
    environ[OWN_FLAGS] = f"{environ.get(OWN_FLAGS, '')} --tf_xla_enable_lazy_compilation=false".strip()


def folder(environ: MutableMapping[str, str] = os.environ) -> Path | None:
    """Where XLA writes what it compiled; None where it doesn't."""
    flags = environ.get(FLAGS, "").split()
    if "--xla_dump_hlo_as_text" not in flags:
        return None
    return next((Path(each.partition("=")[2]) for each in flags if each.startswith("--xla_dump_to=")), None)


def compiles_whole_steps(xla: bool, level: str, devices: int) -> bool:
    """Whether each step is compiled as one cluster."""
    return xla and level != "o1" and devices == 1


def configure(xla: bool, level: str, kind: str, devices: int) -> None:
    """Have XLA find clusters by itself where whole steps aren't compiled. Raises `SettingsError` where it doesn't."""
    clusters = xla and not compiles_whole_steps(xla, level, devices)
    if clusters and kind == "cpu":
        raise SettingsError(f"xla=true on {devices} CPU devices: XLA finds clusters on GPUs only; say xla=false", "xla")
    tf.config.optimizer.set_jit("autoclustering" if clusters else False)
