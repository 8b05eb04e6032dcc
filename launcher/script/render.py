"""`render(plan) -> run.sh`: one file that a person can read, the same for every place, for bash 4.2 and later. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from containers.words import to_bash
from launcher.config import job_environment
from launcher.plan.model import Plan
from launcher.probe import gpu_locks
from launcher.script import (
    after_text,
    attempt_text,
    engine_text,
    schedule,
    slurm_header,
    slurm_text,
    telemetry,
    trainer_command,
)


def render(plan: Plan) -> str:
    """The script of a bound plan. Runs under bash 4.2 and later with the usual commands of a Linux host."""
    slurm = plan.queue == "slurm" and not plan.arm  # an arm is no job of its own
    header = slurm_header.header(plan, log=f"{plan.run_dir}/launch.log") if slurm else []
    sections = [
        "\n".join(["#!/usr/bin/env bash", *header, *_title(plan)]),
        "\n".join(["set -u", "umask 077", f"RUN={to_bash(plan.run_dir)}", f"CODE={to_bash(plan.code_dir)}"]),
        _ending_of_container(plan),
        telemetry.shell(plan.telemetry, _sampled_gpus(plan), _records(plan)) if plan.telemetry else "",
        _on_each_node(plan) if plan.nodes > 1 and not plan.arms else "",
        schedule.function(plan) if plan.arms else "",
        attempt_text.status(plan.shared is not None),
        attempt_text.begin(plan.shared is not None),
        slurm_text.STALE_STOP if slurm else "",
        _until_it_may_start(plan),
        _environment(plan),
        _setup(plan.setup),
        _shared_gpus(plan),
        _rendezvous(plan) if plan.nodes > 1 and not plan.arms else "",
        _time_limit(plan) if slurm else "",
        _run(plan),
        gpu_locks.RELEASE if plan.gpu_pool else "",
        attempt_text.ending(plan),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


_OWN_ELEMENT = """[ -O "$run/run.sh" ] || { echo "error: $run/run.sh is not $(id -un)'s" >&2; exit 1; }"""


def array(plans: Sequence[Plan], *, log: str, folders: str, parallel: int | None) -> str:
    """The script of a job array: element N runs the script of the run folder on line N+1 of the file `folders`."""
    span = f"0-{len(plans) - 1}" + (f"%{parallel}" if parallel else "")
    lines = [
        "#!/usr/bin/env bash",
        *slurm_header.header(plans[0], log=log, array=span),
        f"# {len(plans)} runs, the first {plans[0].run_id}. Each element becomes its own run's script.",
        f'run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {to_bash(folders)})',
        *([_OWN_ELEMENT] if plans[0].shared is not None else []),
        'exec bash "$run/run.sh"',
    ]
    return "\n".join(lines) + "\n"


def _rendezvous(plan: Plan) -> str:
    return f"{slurm_text.RENDEZVOUS}\n{slurm_text.WORKERS}"


def _title(plan: Plan) -> Iterable[str]:
    if plan.arms:
        yield f"# Comparison {plan.run_id} of {len(plan.arms)} arms, each with its own run.sh in RUN/arms."
        yield "# Written by the launcher. Everything it reads and writes is under RUN and CODE."
        return
    how = f" ({plan.mechanism})" if plan.mechanism else ""
    what = plan.script.line() if plan.script else plan.recipe
    batch = f", batch {plan.settings['batch']}" if plan.settings["batch"] else ""
    yield f"# Run {plan.run_id}: {what} in {plan.framework} at {plan.settings['amp']['level']}{how}{batch}."
    yield "# Written by the launcher. Everything it reads and writes is under RUN and CODE."


def _environment(plan: Plan) -> str:
    """Exports of the script. A job in a container gets its own variables there, where they can't change the client."""
    lines = [f"export {name}={to_bash(value)}" for name, value in plan.host_env.items()]
    if plan.container is None:
        if (plan.inherited or plan.passed) and not plan.arms:  # an arm's own script takes them
            lines.append(f'. "$RUN/{job_environment.FILE}" || exit 1')
        lines += [f"export {name}={to_bash(value)}" for name, value in plan.env.items()]
        # From the file into the variable: the text is neither in this script nor in any argument list.
        lines += [f"{name}=$(<{to_bash(path)}) && export {name} || exit 1" for name, path in plan.secrets.items()]
        lines.append('export PYTHONPATH="$CODE" PYTHONUNBUFFERED=1')
    lines.append(
        f'export LAUNCHER_RUN_ID={to_bash(plan.run_id)} LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"'
    )
    return "\n".join(lines)


def _setup(lines: tuple[str, ...]) -> str:
    return "\n".join([attempt_text.SETUP_BEGINS, *lines, attempt_text.SETUP_ENDS]) if lines else ""


def _until_it_may_start(plan: Plan) -> str:
    """The look at whether the run is still wanted, again and again where it waits."""
    waits = plan.after is not None and plan.queue == "direct" and not plan.arm
    refused = gpu_locks.not_wanted(attempt_text.REFUSED) if waits or plan.gpu_pool else attempt_text.REFUSED
    return "\n".join(
        [refused, *([after_text.WAIT] if waits else []), *([] if plan.gpu_pool else [attempt_text.STARTS])]
    )


def _shared_gpus(plan: Plan) -> str:
    """What takes the GPUs of a host that has no scheduler to give them. Behind the setup, which may start what outlives
    the run."""
    if not plan.gpu_pool:
        return ""
    chosen_late = len(plan.gpu_pool) > plan.gpus
    words = gpu_locks.take(plan.gpus, plan.gpu_pool, plan.run_id, wait=plan.wait_gpus, chosen_late=chosen_late)
    return f"{gpu_locks.LOOK}\n{gpu_locks.TAKE}\n{words}\n{attempt_text.STARTS}"


def _run(plan: Plan) -> str:
    """The trainer from its start to its exit code."""
    outliving = trainer_command.outliving(plan) if plan.nodes == 1 else None
    slurm = plan.queue == "slurm"
    started = trainer_command.started(plan)
    return attempt_text.around(started, outliving, slurm=slurm, sampled=_samples_here(plan))


def _records(plan: Plan) -> str:
    """The line before records that a group may read; empty in a root of one user's."""
    return attempt_text.GROUP_READS if plan.shared is not None else ""


def _samples_here(plan: Plan) -> bool:
    """Whether the script's own shell samples. On several nodes each node's does; but those of Pyxis have no shell on
    the host, so that there only the first node is sampled."""
    return plan.telemetry > 0 and (plan.nodes == 1 or trainer_command.is_pyxis(plan))


def _sampled_gpus(plan: Plan) -> str:
    """A word of bash for the job's GPUs as nvidia-smi takes them; empty where it has none."""
    if not plan.gpus:
        return ""
    if plan.queue == "slurm":
        return '"${CUDA_VISIBLE_DEVICES:-${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS-}}}"'
    return '"$gpus"' if plan.gpu_pool else ""


def _ending_of_container(plan: Plan) -> str:
    wrapped = trainer_command.outliving(plan)
    return engine_text.functions(wrapped, slurm=plan.queue == "slurm") if wrapped else ""


def _on_each_node(plan: Plan) -> str:
    """With the sampling of each node, which the trainer holds: it takes the place of the node's shell."""
    sampled = plan.telemetry > 0 and not _samples_here(plan)
    return trainer_command.on_each_node(plan, [telemetry.START] if sampled else [])


def _time_limit(plan: Plan) -> str:
    """A script of the user's own knows nothing of the wish to stop, and DLProf would not survive it: there the time
    limit's warning is let pass."""
    unheard = plan.script is not None or plan.settings["profile"]["tool"] == "dlprof"
    return slurm_text.UNWARNED if unheard else slurm_text.TIME_LIMIT
