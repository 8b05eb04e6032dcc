"""The error for a framework that this Python does not have, with the command that installs it."""

from __future__ import annotations

import sys


def missing(framework: str) -> SystemExit:
    """Print that it is not installed; raise the result to exit with 2."""
    package = {"paddle": "paddlepaddle"}.get(framework, framework)
    print(
        f"framework={framework} is not installed for {sys.executable}: choose an image that has it, name another "
        f"Python with python=, or install it: {sys.executable} -m pip install {package}",
        file=sys.stderr,
    )
    return SystemExit(2)
