"""Calls of Slurm's own programs, with an environment that carries nothing of a surrounding job."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from launcher.errors import Unavailable

_PREFIX = re.compile(r"^(?:\w+: )?(?:error|fatal): |^\w+: ")
_NEEDED = ("HOME", "USER", "LOGNAME", "PATH", "LANG", "TZ", "SLURM_CONF")


def environment(conf: str | None = None) -> dict[str, str]:
    """What Slurm's programs are run with: enough to find the cluster, and nothing of a job that we may be inside of.

    `conf` is the SLURM_CONF of the cluster that is meant, where this process's own may be another's.
    """
    found = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {**found, "SLURM_CONF": conf} if conf else found


def call(
    argv: Sequence[str], *, text: str | None = None, timeout: float = 60, conf: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs and return its output, whatever its exit code. Raises `Unavailable`."""
    if shutil.which(argv[0]) is None:
        adopt_login_path()
    try:
        return subprocess.run(
            argv,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            env=environment(conf),
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not here: Slurm's programs are not on this machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"{argv[0]} did not answer in {timeout:.0f} s; is Slurm's controller up? (scontrol ping)"
        ) from None


@functools.cache
def adopt_login_path() -> None:
    """Look for programs where a login shell does too: many sites put Slurm on the PATH there only, and a command that
    is run over SSH has no login shell."""
    mark = "launcher-login-path"  # what the site's scripts print comes before
    text = f'printf "\\n{mark} %s\\n" "$PATH" "${{SLURM_CONF-}}"'
    try:
        done = subprocess.run(
            ["bash", "-lc", text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    found = [line.removeprefix(f"{mark} ") for line in done.stdout.splitlines() if line.startswith(f"{mark} ")]
    if len(found) == 2:
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{found[0]}"
        if found[1]:
            os.environ.setdefault("SLURM_CONF", found[1])


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said was wrong, without its name in front of each line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    said = [_PREFIX.sub("", line) for line in lines]
    return "; ".join(said) or f"exit code {done.returncode}"
