"""What a program of this machine prints."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def output(
    argv: Sequence[str], env: Mapping[str, str] | None = None, *, seconds: float = 60, folder: str | None = None
) -> str | None:
    """The standard output of a program that gets no input; None if it is not installed, fails, or takes longer."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, env=env, cwd=folder)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
