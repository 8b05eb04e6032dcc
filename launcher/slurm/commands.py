"""Calls of Slurm's own programs, with an environment that carries nothing of a surrounding job."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from launcher.errors import Unavailable

_PREFIX = re.compile(r"^(?:\w+: )?(?:error|fatal): |^\w+: ")
_NEEDED = ("HOME", "USER", "LOGNAME", "PATH", "LANG", "TZ", "SLURM_CONF")


def environment() -> dict[str, str]:
    """What Slurm's programs are run with: enough to find the cluster, and nothing of a job that we may be inside of."""
    return {name: os.environ[name] for name in _NEEDED if name in os.environ}


def call(argv: Sequence[str], *, text: str | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs and return its output, whatever its exit code. Raises `Unavailable`."""
    try:
        return subprocess.run(
            argv,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment(),
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not here: Slurm's programs are not on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{argv[0]} did not answer in {timeout:.0f} s; is Slurm's controller up? (scontrol ping)"
        ) from None


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said was wrong, without its name in front of each line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    said = [_PREFIX.sub("", line) for line in lines]
    return "; ".join(said) or f"exit code {done.returncode}"
