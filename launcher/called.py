"""The name by which this program was started, as people type it."""

from __future__ import annotations

import os
import sys

MODULE = "python -m launcher"
COMMAND = "amp-launcher"
"""What an installation puts on the PATH, where no Python may have the module."""


def as_started(text: str) -> str:
    """The text, whose commands begin with `python -m launcher`, with the name that this program was started by."""
    return text.replace(MODULE, COMMAND) if os.path.basename(sys.argv[0]) == COMMAND else text
