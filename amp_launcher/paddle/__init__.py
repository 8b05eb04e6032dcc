"""Training in Paddle. Importing this imports Paddle without its messages."""

from __future__ import annotations

import os
import sys
import warnings

from amp_launcher.around.early_environment import as_in_script
from amp_launcher.loop import require_framework

if "paddle" not in sys.modules:
    with as_in_script(f"{__name__}.script", ["paddle"]), warnings.catch_warnings():
        os.environ.setdefault("GLOG_minloglevel", "1")  # its executors log what they do
        warnings.filterwarnings("ignore", message="No ccache found")
        try:
            import paddle  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "paddle":
                raise
            raise require_framework.missing("paddle") from None

from amp_launcher.paddle.precision import Precision

__all__ = ["Precision"]
