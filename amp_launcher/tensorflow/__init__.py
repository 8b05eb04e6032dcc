"""Training in TensorFlow with Keras 3. Importing this imports TensorFlow without its messages.

TensorFlow writes to stderr while it is imported, before it can be configured. That output is held back, and shown if
the import fails. A script finds the environment as it was before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from amp_launcher.around.early_environment import as_in_script
from amp_launcher.loop import require_framework
from amp_launcher.precision.support import KERAS_BACKEND, ONEDNN

SCRIPT = f"{__name__}.script"
"""What is started around a script."""
PACKAGES = ("tensorflow", "keras", "tf_keras")
"""Keras, whichever is imported first, imports TensorFlow."""


def _import_quietly() -> None:
    # 3 hides errors too: without a GPU TensorFlow reports that as one.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if Path("/dev/nvidiactl").exists() else "3")
    if SCRIPT not in sys.orig_argv:  # a script is to compute what it does alone
        os.environ.setdefault(KERAS_BACKEND, "tensorflow")
        os.environ.setdefault(ONEDNN, "1")
    else:  # a script that imports Keras on another one is refused
        os.environ[KERAS_BACKEND] = "tensorflow"
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held_back:
        os.dup2(held_back.fileno(), 2)
        try:
            import keras  # noqa: F401
            import tensorflow  # noqa: F401
        except ImportError as error:
            os.dup2(stderr, 2)
            if error.name in ("tensorflow", "keras"):
                raise require_framework.missing("tensorflow") from None
            held_back.seek(0)
            shutil.copyfileobj(held_back, sys.stderr.buffer)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


if "tensorflow" not in sys.modules:
    with as_in_script(SCRIPT, PACKAGES, own=(ONEDNN,)):
        _import_quietly()

from amp_launcher.tensorflow.precision import Precision  # noqa: E402

__all__ = ["Precision"]
