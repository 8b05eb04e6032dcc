"""`shell`: a terminal in a job's container and environment, where the job would run, or in those of a run."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
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
from launcher.runs import ownership, run_roots, store
from launcher.runs.address import Address
from launcher.script import interactive

HELP = """\
Open a terminal in the container and environment that a job would have, on its cluster.

usage: python -m launcher shell [key=value ...] [--forward PORT] [--config-dir DIR]
       python -m launcher shell RUN [--forward PORT] [run_root=PATH]

  key=value       as for run: cluster=, container=, image=, gpus=, env.NAME=...
  RUN             the environment of that run; while it runs, its own GPUs or Slurm allocation
  --forward PORT  bring a port (TensorBoard 6006, Jupyter 8888) to this machine while the terminal is open;
                  HERE:PORT where this machine's own is in use

On this machine it opens here; over SSH by the system's ssh, through an open master connection where there is one;
under Slurm by srun --pty with the job's resources. On a host without a scheduler it takes GPUs as a job does, and holds
them while it is open: gpus=0 takes none.
"""


class Port(NamedTuple):
    """A port of the job's host, and where it is to be on this machine."""

    local: int
    remote: int


class Place(NamedTuple):
    """What a terminal is opened for."""

    plan: Plan
    address: Address | None
    attempt: int | None = None
    """Of a run that runs now."""
    job: str | None = None
    """Its Slurm job."""


def main(arguments: Sequence[str]) -> int:
    words = request.take_apart(arguments, own=("forward",))
    if words.help:
        print(HELP, end="")
        return 0
    port = None if words.forward is None else _port(words.forward)
    names = [override for override in words.overrides if "=" not in override and not override.startswith("~")]
    if not sys.stdin.isatty():
        raise UsageError("shell needs a terminal as its standard input; `logs` and `ls` do not")
    place = _of_run(names, words.overrides) if names else _of_job(words)
    token = secrets.token_hex(4)
    command = opening(place, port, token)
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{command[0]} opens this terminal, and is not installed here")
    sys.stdout.flush()
    _close()
    if port and place.address and place.plan.queue == "slurm":
        return _attended(place, port, token)
    os.execvpe(command[0], command, _environment(place))


def opening(place: Place, port: Port | None, token: str, control: str = "") -> list[str]:
    """The command that opens the terminal; over SSH with a socket for others to go through, if `control` names one.

    Raises `UsageError` for a port that can't be forwarded.
    """
    plan, address = place.plan, place.address
    if port and plan.container is not None and plan.container.network == "none":
        raise UsageError(f"--forward {port.remote}: container.network=none has no ports; say container.network=host")
    if port and plan.container is not None and plan.container.runtime.kind == "pyxis":
        raise UsageError(f"--forward {port.remote}: with container=pyxis the node is not known here")
    if port and address is None and port.local != port.remote:
        raise UsageError(
            f"--forward {port.local}:{port.remote}: this machine is the job's host; {port.remote} is its own"
        )
    is_forwarded = address is not None or plan.queue != "slurm"
    shown = (port.remote, port.local if is_forwarded else None) if port else None
    text = interactive.script(plan, token=token, attempt=place.attempt, port=shown)
    command = interactive.on_slurm(plan, text, place.job) if plan.queue == "slurm" else ["bash", "-c", text]
    if address is None:
        return command
    from launcher.ssh import openssh_transport

    options: list[str] = []
    if port and plan.queue != "slurm":
        options = ["-L", f"{port.local}:localhost:{port.remote}", "-o", "ExitOnForwardFailure=yes"]
    elif control:
        options = ["-M", "-S", control]
    return interactive.over_ssh(openssh_transport.argv(address, "-t", *options), command)


def _attended(place: Place, port: Port, token: str) -> int:
    """A terminal on a node that Slurm has yet to choose: once it has, the port of that node is forwarded, through
    the terminal's own connection to the login node. Returns its exit code."""
    from launcher.ssh import openssh_transport

    assert place.address is not None
    with tempfile.TemporaryDirectory(prefix="launcher-") as folder:
        control = f"{folder}/ssh"
        shell = subprocess.Popen(opening(place, port, token, control), env=_environment(place))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for what runs in the terminal
        node = ""
        while not node and shell.poll() is None:
            time.sleep(0.5)
            asked = openssh_transport.argv(place.address, "-S", control, "-o", "BatchMode=yes")
            node = _output(interactive.over_ssh(asked, ["cat", interactive.note(place.plan, token)]))
        if node:
            through = ["-S", control, "-O", "forward", "-L", f"{port.local}:{node}:{port.remote}"]
            done = subprocess.run(openssh_transport.argv(place.address, *through), capture_output=True, text=True)
            if done.returncode != 0:
                print(f"port {port.remote} is not forwarded: {done.stderr.strip()}\r", file=sys.stderr)
        return shell.wait()


def _output(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def _port(text: str) -> Port:
    """What `--forward PORT` or `--forward HERE:PORT` names. Raises `UsageError`."""
    local, _, remote = text.rpartition(":")
    if not all(number.isdecimal() and 0 < int(number) < 65536 for number in (local or remote, remote)):
        raise UsageError(f"--forward {text}: a port is a number from 1 to 65535, or two as 8080:6006")
    return Port(int(local or remote), int(remote))


def _of_job(words: Words) -> Place:
    """A terminal for a job that would be started with these words."""
    from launcher.ssh.probe_client import probe

    spec = request.understand_one(words, "shell opens one terminal")
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
    return Place(plan, address)


def _of_run(names: Sequence[str], words: Sequence[str]) -> Place:
    """A terminal in the environment of a run."""
    extra = [word for word in words if "=" in word and not word.startswith("run_root=")]
    if extra:
        raise UsageError(
            f"shell {names[0]}: the environment is the run's own{nearest(extra[0].partition('=')[0], ['run_root'])}; "
            f"leave {' '.join(extra)} out, or the run"
        )
    root = next((word.partition("=")[2] for word in words if word.startswith("run_root=")), None)
    run = single("shell", names, run_roots.named(root))
    ownership.refuse_anothers("shell", [run])
    (seen,) = backends.look([run])
    if seen.files.copied:
        raise UsageError(f"{run.id} has no shell in {run.folder}: {backends.COPIED}")
    values = store.read_or_empty(store.plan_path(run.folder), own_in=run.root)
    if not values:
        raise UsageError(f"{run.id} has no plan.json, so its environment is unknown")
    plan = record.of_run(values, run.path)
    running = seen.state.name in ("running", "stopping")
    ended = [] if running else list(job_environment.own_secrets(plan.secrets, plan.run_dir))
    if ended:
        print(f"note: without {', '.join(ended)}: the run's own secrets were deleted when it ended", file=sys.stderr)
        kept = {name: path for name, path in plan.secrets.items() if name not in ended}
        plan = dataclasses.replace(plan, secrets=kept)
    return Place(
        plan, _address(run), seen.state.attempt if running else None, job_of(seen.files.submission) if running else None
    )


def _close() -> None:
    """Connections end before this process becomes another program."""
    host = sys.modules.get("launcher.ssh.host")
    if host is not None:
        host.close_all()


def _address(run: store.Run) -> Address | None:
    from launcher.runs import remote_record

    if not run_roots.is_remote(run.root):
        return None
    return remote_record.required(run).address


def _environment(place: Place) -> dict[str, str]:
    """Of the command here. Over SSH it is the system's ssh, which may need all of it."""
    if place.address:
        return dict(os.environ)
    passed = ("TERM", "COLORTERM", *place.plan.passed)
    return {**execute.environment(), **{name: os.environ[name] for name in passed if name in os.environ}}
