"""All tests of Paddle run in this one process: importing it takes seconds."""

from __future__ import annotations

import sys

import pytest

if "tensorflow" in sys.modules and "paddle" not in sys.modules:
    # Paddle 3.3 and TensorFlow 2.21 live in one process only in this order; the other one crashes it.
    raise pytest.UsageError("Paddle can't be imported after TensorFlow: name tests/amp_launcher/paddle first")

pytest.importorskip("paddle")
