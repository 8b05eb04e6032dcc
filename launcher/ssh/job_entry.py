"""A Host entry by which the system's ssh reaches a job: `ssh RUN`, and whatever starts ssh itself."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from launcher import bash_files, called
from launcher.errors import Unavailable, UsageError
from launcher.runs import run_ids, run_roots
from launcher.runs.store import Run

USER = re.compile(r"[A-Za-z_][\w.-]*\$?")


def sshd(public_key: str = "") -> tuple[str, ...]:
    """The command that serves one connection in a job; without a key it only says who logs in."""
    return ("sh", "-c", bash_files.text("launcher.script", "job_sshd.sh"), "sshd", public_key)


def public_key() -> str:
    """The key that jobs let in, made when it is first asked for. Raises `Unavailable`."""
    path = _key()
    if not path.with_suffix(".pub").exists():
        run_roots.make_private(path.parent)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "amp-launcher", "-f", str(path)]
        try:
            made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        except FileNotFoundError:
            raise Unavailable("ssh-keygen makes the key for jobs, and is not installed here") from None
        if made.returncode:
            raise Unavailable(f"ssh-keygen could not make {path}: {(made.stderr or made.stdout).strip()}")
    return path.with_suffix(".pub").read_text(encoding="utf-8").strip()


def entry(run: Run, user: str) -> str:
    """The lines of an SSH configuration. Raises `UsageError` for a user's name that is none."""
    if not USER.fullmatch(user):
        raise UsageError(f"{run.id}: the job's user is {user!r}, by which no ssh can log in")
    here = [f"run_root={run.root}"] if not run_roots.is_remote(run.root) else []
    proxy = shlex.join([*called.command(), "shell", run.id, *here, "--sshd"])
    lines = [
        f"Host {run_ids.words_of(run.id)}",
        f"  User {user}",
        f"  ProxyCommand {proxy.replace('%', '%%')}",
        f'  IdentityFile "{str(_key()).replace("%", "%%")}"',
        "  IdentitiesOnly yes",
        "  # The way into the job is checked already; its sshd has a new key for each connection.",
        "  StrictHostKeyChecking no",
        "  UserKnownHostsFile /dev/null",
        "  LogLevel ERROR",
    ]
    return "\n".join(lines)


def _key() -> Path:
    return Path(run_roots.state_folder(), "job_key")
