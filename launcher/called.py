"""The name by which this program was started, as people type it, and what starts it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MODULE = "python -m launcher"
COMMAND = "amp-launcher"
"""What an installation puts on the PATH, where no Python may have the module."""

_START = "import sys; sys.path[0] = sys.argv.pop(1); from launcher.__main__ import main; sys.exit(main())"


def command() -> list[str]:
    """What starts this launcher from any folder, whatever lies in that; its words follow."""
    return [sys.executable, "-c", _START, str(Path(__file__).resolve().parents[1])]


def as_started(text: str) -> str:
    """The text, whose commands begin with `python -m launcher`, with the name that this program was started by."""
    return text.replace(MODULE, COMMAND) if os.path.basename(sys.argv[0]) == COMMAND else text
