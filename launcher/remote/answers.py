"""The far side's answers: each does there what the same launcher does on its own machine."""

from __future__ import annotations

import platform
from typing import Any


def hello() -> dict[str, Any]:
    """That it answers, and with what."""
    return {"host": platform.node(), "system": platform.system(), "python": platform.python_version()}
