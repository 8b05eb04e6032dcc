"""The error for a framework that this Python does not have, with the command that installs it."""

from __future__ import annotations

import sys


def package_of(framework: str) -> str:
    """What pip calls it."""
    return {"paddle": "paddlepaddle"}.get(framework, framework)


def missing(framework: str) -> SystemExit:
    """Print that it is not installed; raise the result to exit with 2."""
    print(
        f"framework={framework} is not installed for {sys.executable}: choose an image that has it, name another "
        f"Python with python=, or install it: {sys.executable} -m pip install {package_of(framework)}",
        file=sys.stderr,
    )
    return SystemExit(2)
