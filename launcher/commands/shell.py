"""`shell`: a terminal in a job's container and environment, where the job would run, or in those of a run."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from amp_launcher.typed import nearest
from launcher.code import code_store
from launcher.commands.arguments import single
from launcher.config import job_environment, request
from launcher.config.request import Words
from launcher.errors import Unavailable, UsageError
from launcher.executors import backends, execute
from launcher.executors.slurm.jobs import job_of
from launcher.plan import record
from launcher.plan.model import Plan
from launcher.plan.resolve import resolve
from launcher.runs import address as addresses
from launcher.runs import ownership, remote_record, run_roots, store
from launcher.runs.address import Address
from launcher.script import interactive
from launcher.script.interactive import Inside
from launcher.ssh import job_entry
from launcher.ui import summary

HELP = """\
Open a terminal in the container and environment that a job would have, on its cluster.

usage: python -m launcher shell [key=value ...] [--config-dir DIR] [-- COMMAND]
       python -m launcher shell RUN [run_root=PATH] [-- COMMAND]
       python -m launcher shell RUN --ssh-config [run_root=PATH]

  key=value       as for run: cluster=, container=, image=, gpus=, env.NAME=...
  RUN             the environment of that run; while it runs, its own GPUs or Slurm allocation
                  and, of what `up` started, its own container
  -- COMMAND      run this there and end with its exit code; it needs no terminal
  --ssh-config    print a Host entry that leads into the running job, for ssh, scp, VS Code and Jupyter:
                  shell RUN --ssh-config >> ~/.ssh/config; then `ssh -L 6006:localhost:6006 RUN` brings a
                  port here. It needs OpenSSH's server where the run is

On this machine it opens here; over SSH by the system's ssh, through an open master connection where there is one;
under Slurm by srun --pty with the job's resources. On a host without a scheduler it takes GPUs as a job does, and holds
them while it is open: gpus=0 takes none.
"""

SECONDS_TO_ANSWER = 120
"""The longest that a job may take to say who it runs as."""


class ShellTarget(NamedTuple):
    """What a terminal is opened for."""

    plan: Plan
    address: Address | None
    attempt: int | None = None
    """Of a run that runs now."""
    job: str | None = None
    """Its Slurm job."""


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, own=("ssh-config", "sshd"))
    names = [word for word in words.overrides if "=" not in word and not word.startswith(("~", "env.", "secrets."))]
    if words.ssh_config:
        return _print_entry(names, words.overrides)
    if words.sshd:
        words = dataclasses.replace(words, arguments=job_entry.sshd(job_entry.public_key()))
    has_terminal = sys.stdin.isatty() and not words.sshd
    if words.arguments == ():
        raise UsageError("shell ... -- needs a command behind --; without -- it opens a terminal")
    if not has_terminal and not words.arguments:
        raise UsageError("shell needs a terminal as its standard input; `shell RUN -- COMMAND`, `logs` and `ls` do not")
    inside = Inside(words.arguments or (), has_terminal and (not words.arguments or sys.stdout.isatty()))
    job = dataclasses.replace(words, arguments=None)  # the command is not its script's
    place = _of_run(names, words.overrides) if names else _of_job(job)
    command = _opening(place, secrets.token_hex(4), inside)
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} opens this terminal, and is not installed here")
    sys.stdout.flush()
    _close()
    if words.sshd:  # as it leaves, ssh hangs up on this process, and what it started ends at the end of its input
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return subprocess.run(command, env=_environment(place)).returncode
    os.execvpe(command[0], command, _environment(place))


def _opening(place: ShellTarget, token: str, inside: Inside) -> list[str]:
    """The command that opens the terminal."""
    plan, address = place.plan, place.address
    from launcher.ssh import openssh_transport

    text = interactive.script(plan, token=token, attempt=place.attempt, inside=inside)
    on_slurm = plan.queue == "slurm"
    command = (
        interactive.on_slurm(plan, text, place.job, terminal=inside.terminal) if on_slurm else ["bash", "-c", text]
    )
    if address is None:
        return command
    return interactive.over_ssh(openssh_transport.argv(address, *(["-t"] if inside.terminal else [])), command)


def _print_entry(names: Sequence[str], words: Sequence[str]) -> int:
    """What `--ssh-config` prints. Raises `LauncherError` where the run has no sshd, or does not run."""
    if not names:
        raise UsageError("shell --ssh-config leads into a run, so name one: shell RUN --ssh-config")
    place = _of_run(names, words)
    if place.attempt is None:
        raise UsageError(f"{names[0]} does not run, so no ssh leads into it")
    command = _opening(place, secrets.token_hex(4), Inside(job_entry.sshd(), False))
    try:
        asked = subprocess.run(
            command,
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_TO_ANSWER,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{names[0]} did not answer within {SECONDS_TO_ANSWER} s") from None
    if asked.returncode:
        why = asked.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise Unavailable(f"{names[0]}: {why or f'its host ended the question with exit code {asked.returncode}'}")
    job_entry.public_key()
    print(job_entry.entry(_run(names, words), asked.stdout.strip()))
    return 0


def _of_job(words: Words) -> ShellTarget:
    """A terminal for a job that would be started with these words."""
    from launcher.ssh.probe_client import probe

    spec = request.to_spec(words, "shell opens one terminal")
    address = addresses.of(spec.launch.cluster)
    of_variables = [name for name, path in spec.launch.secrets.items() if path is None]
    if names := ", ".join(spec.launch.secrets if address else of_variables):
        raise UsageError(f"secrets ({names}) are sent with a run; `shell RUN` has them, a shell without a run does not")
    facts = probe([spec])
    plan = resolve(spec, facts)
    if address and plan.passed:
        names = ", ".join(plan.passed)
        raise UsageError(
            f"variables of this shell ({names}) are sent with a run, not with a terminal; say env.NAME=VALUE"
        )
    if address is None:
        store.make_root(Path(plan.run_root), shared=plan.shared is not None)
        code_store.store(Path(plan.code_dir).parent, plan.code, facts.code.paths)
    else:
        from launcher.executors.ssh import submit_client

        submit_client.send_code(plan, facts.code.paths, address)
    return ShellTarget(plan, address)


def _run(names: Sequence[str], words: Sequence[str]) -> store.Run:
    root = next((word.partition("=")[2] for word in words if word.startswith("run_root=")), None)
    return single("shell", names, run_roots.named(root))


def _of_run(names: Sequence[str], words: Sequence[str]) -> ShellTarget:
    """A terminal in the environment of a run."""
    extra = [word for word in words if "=" in word and not word.startswith("run_root=")]
    if extra:
        raise UsageError(
            f"shell {names[0]}: the environment is the run's own{nearest(extra[0].partition('=')[0], ['run_root'])}; "
            f"leave {' '.join(extra)} out, or the run"
        )
    run = _run(names, words)
    ownership.refuse_other_users("shell", [run])
    (seen,) = backends.states_of([run])
    if seen.files.copied:
        raise UsageError(f"{run.id} has no shell in {run.folder}: {backends.COPIED}")
    values = store.read_or_empty(store.plan_path(run.folder), own_in=run.root)
    if not values:
        raise UsageError(f"{run.id} has no plan.json, so its environment is unknown")
    pointer = _pointer(run)
    plan = record.of_run(values, f"{pointer.root}/{run.id}" if pointer else run.path)
    running = seen.state.name in ("running", "stopping")
    if plan.up and not running:
        what = "has ended; `up` starts another" if seen.state.finished else "is not up yet"
        raise UsageError(f"{run.id} {what} ({summary.headline(seen.state, time.time()).strip()})")
    ended = [] if running else list(job_environment.own_secrets(plan.secrets, plan.run_dir))
    if ended:
        print(f"note: without {', '.join(ended)}: the run's own secrets were deleted when it ended", file=sys.stderr)
        kept = {name: path for name, path in plan.secrets.items() if name not in ended}
        plan = dataclasses.replace(plan, secrets=kept)
    return ShellTarget(
        plan,
        pointer.address if pointer else None,
        seen.state.attempt if running else None,
        job_of(seen.files.submission) if running else None,
    )


def _close() -> None:
    """Connections end before this process becomes another program."""
    host = sys.modules.get("launcher.ssh.host")
    if host is not None:
        host.close_all()


def _pointer(run: store.Run) -> remote_record.Pointer | None:
    """Where a run on another host is; None for one of this machine."""
    return remote_record.required(run) if run_roots.is_remote(run.root) else None


def _environment(place: ShellTarget) -> dict[str, str]:
    """Of the command here. Over SSH it is the system's ssh, which may need all of it."""
    if place.address:
        return dict(os.environ)
    passed = ("TERM", "COLORTERM", *place.plan.passed)
    return {**execute.environment(), **{name: os.environ[name] for name in passed if name in os.environ}}
