"""What is said where a framework isn't there for the Python that runs: the extra that brings it."""

from __future__ import annotations

import sys


def missing(framework: str) -> SystemExit:
    """Say that it isn't installed, and end the process with 2 by raising this."""
    print(
        f"framework={framework} is not installed for {sys.executable}: pip install 'amp-launcher[{framework}]'",
        file=sys.stderr,
    )
    return SystemExit(2)
