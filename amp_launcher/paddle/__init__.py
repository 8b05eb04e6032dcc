"""Training in Paddle. Importing this imports Paddle without its messages."""

from __future__ import annotations

import os
import sys
import warnings

from amp_launcher.loop import require_framework

if "paddle" not in sys.modules:
    os.environ.setdefault("GLOG_minloglevel", "1")  # its executors log what they do
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        try:
            import paddle  # noqa: F401
        except ModuleNotFoundError as error:
            if error.name != "paddle":
                raise
            raise require_framework.missing("paddle") from None

from amp_launcher.paddle.precision import Precision

__all__ = ["Precision"]
