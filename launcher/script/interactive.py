"""A terminal in a job's environment: the script that opens it where the job would run, and the command that gets there.

The same description as a job's: its variables, setup, container, mounts and devices. What differs: no attempt, no
`LAUNCHER_RUN_ID` (whatever carries that belongs to a run and ends with it), and the run root in the place of one run's
folder. Pure.
"""

from __future__ import annotations

import base64
import dataclasses
import posixpath
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from launcher import bash_files
from launcher.code import code_store
from launcher.config import job_environment
from launcher.containers.description import Container, Mount
from launcher.containers.devices import JOB_GPUS, needs_job_gpus
from launcher.containers.runtimes import wrap
from launcher.containers.words import to_bash
from launcher.plan import container as plan_container
from launcher.plan.model import PLACEHOLDER, Plan
from launcher.probe import gpu_locks
from launcher.runs import terminals
from launcher.script.render import bash_line, exports, host_exports
from launcher.script.slurm_header import resources
from launcher.script.trainer_command import is_pyxis

_PROMPT = r"launcher \$ "
_INSIDE = f"if command -v bash >/dev/null; then PS1={shlex.quote(_PROMPT)} exec bash --norc --noprofile -i; fi; exec sh"


class Inside(NamedTuple):
    """What is started in the environment."""

    command: tuple[str, ...] = ()
    """Empty for an interactive shell."""
    terminal: bool = True
    """Whether it has one; a command may read a file or a pipe."""


SHELL = Inside()


def script(plan: Plan, *, token: str, attempt: int | None, inside: Inside = SHELL) -> str:
    """The script that opens the terminal, for bash on the host of the job; for Pyxis, on the host that calls srun.
    `token` makes the container's name unique. `attempt` is that of a run under way whose GPUs are to be shared; else
    GPUs are taken as a job takes them. `inside` is what is started."""
    takes_gpus = bool(plan.gpu_pool) and attempt is None
    held = code_store.mark(plan.code_dir, token)
    sections = [
        "set -u",
        f"umask 077\nLAUNCHER_CODE={to_bash(plan.code_dir)}",
        # So that `rm` leaves the code alone: the lock lasts as long as anything that was started in the terminal.
        f'{{ exec {{LAUNCHER_HELD}}>>{to_bash(held)}; }} 2>/dev/null && flock --shared "$LAUNCHER_HELD"',
        _mark_open(plan) if plan.up else "",
        _environment(plan),
        "\n".join(["set +u", *plan.setup, "set -u"] if plan.setup else []),
        _gpus(plan, attempt),
        "" if inside.command else _banner(plan),
        _start(plan, token, inside),
        "LAUNCHER_EXIT=$?",
        f"touch {to_bash(_mark(plan))}" if plan.up else "",
        "gpu_release" if takes_gpus else "",
        # What was left in the background holds the lock still.
        '[ -z "${LAUNCHER_HELD-}" ] || exec {LAUNCHER_HELD}>&-',
        f"flock --nonblock {to_bash(held)} rm -f {to_bash(held)}",
        "exit $LAUNCHER_EXIT",
    ]
    return "\n".join(section for section in sections if section)


def on_slurm(plan: Plan, text: str, job: str | None, *, terminal: bool = True) -> list[str]:
    """`srun`, with `--pty` for a terminal, of the script, with the job's resources; in the allocation of `job` where
    it has one."""
    if is_pyxis(plan):
        return ["bash", "-c", text]
    # What finds the cluster: this command's environment may lack it, or name another.
    named = [f"{name}={value}" for name, value in plan.host_env.items()]
    where = [f"--jobid={job}", "--overlap"] if job else resources(plan)
    stdio = ["--pty"] if terminal else ["--unbuffered"]  # else srun keeps what ends in no newline
    return ["env", *named, "srun", *where, "--export=ALL", *stdio, "bash", "-c", text]


def over_ssh(ssh: Sequence[str], words: Sequence[str]) -> list[str]:
    """The words as the system's ssh takes them. The login shell there reads them, and may be any: csh takes `!` and
    ends of lines even in single quotes, fish backslashes. So it gets letters and digits, which bash decodes."""
    text = base64.b64encode(shlex.join(words).encode()).decode()
    return [*ssh, f"""exec bash -c 'eval "$(echo {text} | base64 -d)"'"""]


def _mark(plan: Plan) -> str:
    return f"{plan.run_dir}/{terminals.MARK}"


def _mark_open(plan: Plan) -> str:
    """The line that holds the mark of an open terminal, which `ls` reads."""
    mark = to_bash(_mark(plan))
    return f'{{ exec {{LAUNCHER_OPEN}}>>{mark}; }} 2>/dev/null && touch {mark} && flock --shared "$LAUNCHER_OPEN"'


def _environment(plan: Plan) -> str:
    of_run = plan.run_id != PLACEHOLDER
    passed = to_bash(f"{plan.run_dir}/{job_environment.FILE}") if of_run and (plan.inherited or plan.passed) else ""
    lines = [*host_exports(plan), *exports(plan, plan.env, passed), "export TERM=${TERM:-dumb}"]
    if plan.container is None:
        if of_run:
            lines.append(f"export LAUNCHER_SPEC={to_bash(plan.run_dir)}/plan.json")
        if "/" in plan.python:
            lines.append(f'export PATH={to_bash(plan.python.rpartition("/")[0] or "/")}:"$PATH"')
    return "\n".join(lines)


def _gpus(plan: Plan, attempt: int | None) -> str:
    if not plan.gpu_pool:
        return ""
    late = len(plan.gpu_pool) > plan.gpus
    shown = gpu_locks.SHOW if late else ""
    if attempt is not None:
        return f"LAUNCHER_GPUS=$(<{to_bash(plan.run_dir)}/attempts/{attempt}/gpus) || exit 3\n{shown}" if late else ""
    wait = "yes" if plan.wait_gpus else to_bash("")
    texts = (gpu_locks.functions(), bash_files.text("launcher.script", "shell.sh"))
    return "\n".join([*texts, f"take_gpus_for_shell {plan.gpus} {to_bash(' '.join(plan.gpu_pool))} {wait}", shown])


def _banner(plan: Plan) -> str:
    where = f"in {plan.container.runtime.kind} {plan.container.asked}" if plan.container else "on the host itself"
    trainer = shlex.join(["python" if plan.container is None else plan.python, "-m", plan.trainer, *plan.words])
    if plan.up:
        lines = [f"{plan.run_id}, {where}; `exit` leaves it, `down {plan.run_id}` ends it"]
    else:
        lines = [f"the environment of {plan.recipe} at {plan.settings['amp']['level']}, {where}; `exit` leaves it"]
        lines.append(f"the trainer by hand: {trainer}")
    return "\n".join(f"echo {to_bash(line)} >&2" for line in lines)


def _start(plan: Plan, token: str, inside: Inside) -> str:
    if plan.container is None:
        folder = to_bash(plan.script.folder(plan.run_dir)) if plan.up and plan.script else '"$LAUNCHER_CODE"'
        own = bash_line(inside.command) or f"PS1={to_bash(_PROMPT)} bash --norc --noprofile -i"
        return f"cd {folder} 2>/dev/null || cd\n{own}"
    argv = inside.command or ("/bin/sh", "-c", _INSIDE)
    if plan.up and plan.container.runtime.kind in ("docker", "podman"):
        return _in_its_own(plan, argv, inside)
    container = dataclasses.replace(
        _container(plan, token, argv), terminal=inside.terminal, reads_input=not inside.terminal
    )
    runtime = plan.container.runtime
    if is_pyxis(plan):
        runtime = dataclasses.replace(runtime, command=("srun", *resources(plan)))
    wrapped = wrap(container, runtime)
    lines = [JOB_GPUS] if plan.queue == "slurm" and needs_job_gpus(container.devices, runtime.kind) else []
    lines += [f"mkdir -p -m 700 {to_bash(folder)} || exit 1" for folder in (plan.run_root, *wrapped.folders)]
    lines += [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    if not wrapped.remove:
        return "\n".join([*lines, bash_line(wrapped.argv)])
    # The engine's container and its client keep running when the client's terminal is gone. The wait is one
    # that a hang-up interrupts.
    lines.append(f"trap {to_bash(bash_line(wrapped.remove) + ' >/dev/null 2>&1')} EXIT")
    lines.append("trap 'exit 129' HUP TERM")
    return "\n".join([*lines, f"{bash_line(wrapped.argv)} <&0 &", "wait $!"])


def _in_its_own(plan: Plan, argv: Sequence[str], inside: Inside) -> str:
    """In the running container, not in a new one: what was installed in it is there."""
    assert plan.container is not None
    name = plan_container.describe(plan, ()).name
    flags = ["--interactive", *(["--tty"] if inside.terminal else []), "--env=TERM"]
    return bash_line([*plan.container.runtime.command, "exec", *flags, name, *argv])


def _container(plan: Plan, token: str, argv: tuple[str, ...]) -> Container:
    described = plan_container.describe(plan, argv)
    of_run = plan.run_id != PLACEHOLDER
    environment = {name: value for name, value in described.environment.items() if name != "LAUNCHER_RUN_ID"}
    if of_run:
        environment["LAUNCHER_SPEC"] = f"{plan.run_dir}/plan.json"
    root = Mount(source=plan.run_root, target=plan.run_root)
    return dataclasses.replace(
        described,
        environment=environment,
        passed=("TERM", *(() if of_run else plan.passed)),
        exports=described.exports if of_run else "",
        mounts=(
            root,
            *(
                mount
                for mount in described.mounts
                if plan.run_dir not in (mount.source, posixpath.dirname(mount.source))
            ),
        ),
        name=f"shell-{token}",
    )
