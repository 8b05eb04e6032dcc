"""Calls of Slurm's programs, with an environment free of a surrounding job."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from launcher.containers import programs
from launcher.errors import Unavailable

_PREFIX = re.compile(r"^(?:\w+: )?(?:error|fatal): |^\w+: ")
_NEEDED = ("HOME", "USER", "LOGNAME", "PATH", "LANG", "TZ", "SLURM_CONF")


def environment(conf: str | None = None) -> dict[str, str]:
    """Variables that find the cluster, without those of a surrounding job. `conf` is the cluster's SLURM_CONF, where
    this process's may be another cluster's."""
    needed = {name: os.environ[name] for name in _NEEDED if name in os.environ}
    return {**needed, "SLURM_CONF": conf} if conf else needed


def call(
    argv: Sequence[str], *, text: str | None = None, timeout: float = 60, conf: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's programs and return its output, whatever its exit code. Raises `Unavailable`."""
    return output(begin(argv, conf=conf), text=text, timeout=timeout)


def begin(argv: Sequence[str], *, conf: str | None = None) -> subprocess.Popen[str]:
    """Start one of Slurm's programs, whose `output` is then to be read. Raises `Unavailable`."""
    if shutil.which(argv[0]) is None:
        adopt_login_path()
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env=environment(conf)
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not here: Slurm's programs are not on this machine's PATH") from None


def output(
    started: subprocess.Popen[str], *, text: str | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """What a program of Slurm's prints, given `text`, whatever its exit code. Raises `Unavailable`."""
    argv: Any = started.args
    with started:
        try:
            printed, complaints = started.communicate(text, timeout)
        except BaseException as error:
            started.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            remedy = "is slurmdbd up?" if argv[0] == "sacct" else "is Slurm's controller up? (scontrol ping)"
            raise Unavailable(f"{argv[0]} did not answer in {timeout:.0f} s; {remedy}") from None
    return subprocess.CompletedProcess(argv, started.returncode, printed, complaints)


@functools.cache
def adopt_login_path() -> None:
    """Extend PATH by that of a login shell: many sites add Slurm only there, and a command over SSH has no login
    shell."""
    mark = "launcher-login-path"  # the site's scripts may print before it
    text = f'printf "\\n{mark} %s\\n" "$PATH" "${{SLURM_CONF-}}"'
    printed = programs.output(["bash", "-lc", text], seconds=20) or ""
    values = [line.removeprefix(f"{mark} ") for line in printed.splitlines() if line.startswith(f"{mark} ")]
    if len(values) == 2:
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{values[0]}"
        if values[1]:
            os.environ.setdefault("SLURM_CONF", values[1])


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """A program's error text, without its name at the start of each line."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return "; ".join(_PREFIX.sub("", line) for line in lines) or f"exit code {done.returncode}"
