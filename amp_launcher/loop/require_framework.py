"""The error for a framework that this Python does not have, with the extra that installs it."""

from __future__ import annotations

import sys


def missing(framework: str) -> SystemExit:
    """Print that it is not installed; raise the result to exit with 2."""
    print(
        f"framework={framework} is not installed for {sys.executable}: in a container, choose an image that has it; "
        f"elsewhere, pip install 'amp-launcher[{framework}]'",
        file=sys.stderr,
    )
    return SystemExit(2)
