"""`render(plan) -> run.sh`, which a person can read, and `supervisor(plan) -> supervise.sh`, the launcher's own bash
that it sources; the same for every place, for bash 4.2 and later. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from launcher import bash_files
from launcher.config import job_environment, slurm_units
from launcher.containers.runtime import GRACE
from launcher.containers.words import Word, to_bash
from launcher.errors import UsageError
from launcher.plan import user_script
from launcher.plan.model import Plan
from launcher.plan.plan_summary import mode
from launcher.probe import gpu_locks
from launcher.runs import run_ids
from launcher.runs.store import SECRETS
from launcher.script import comparison, slurm_header, trainer_command

_NONE = "''"
SUPERVISOR = "supervise.sh"
"""Of a run's folder: the functions that run.sh calls."""


def render(plan: Plan) -> str:
    """The script of a bound plan: what it runs, on its first screen, then the steps around that."""
    header = slurm_header.header(plan, log=f"{plan.run_dir}/launch.log") if _is_job(plan) else []
    sections = [
        ["#!/usr/bin/env bash", *header, *map(_comment, _title(plan))],
        ["set -u", "umask 077", f"LAUNCHER_RUN={to_bash(plan.run_dir)}", f"LAUNCHER_CODE={to_bash(plan.code_dir)}"],
        *_functions(plan),
        [*_settings(plan), *_source(plan)],
        host_exports(plan),
        _on_node(plan),
        _start(plan),
        _environment(plan),
        _setup(plan),
        _run(plan),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def supervisor(plan: Plan) -> str:
    """The launcher's own bash that the plan's run.sh needs."""
    names = ["attempt.sh"]
    names += ["slurm.sh"] if plan.queue == "slurm" else []
    names += ["after.sh"] if _waits(plan) else []
    names += ["restart.sh"] if _restarts(plan) else []
    names += ["notify.sh"] if plan.notify else []
    names += ["compare.sh"] if plan.arms else []
    names += ["engine.sh"] if trainer_command.outliving(plan) else []
    names += ["telemetry.sh"] if plan.telemetry else []
    names += ["gpus.sh"] if plan.gpu_pool else []
    texts = [bash_files.text("launcher.script", name) for name in names]
    texts += [gpu_locks.functions()] if plan.gpu_pool else []
    return "\n".join(texts)


def array(plans: Sequence[Plan], *, log: str, folders: str, parallel: int | None) -> str:
    """The script of a job array: element N runs the script of the run folder on line N+1 of the file `folders`."""
    span = f"0-{len(plans) - 1}" + (f"%{parallel}" if parallel else "")
    own = """[ -O "$run/run.sh" ] || { echo "error: $run/run.sh is not $(id -un)'s" >&2; exit 1; }"""
    lines = [
        "#!/usr/bin/env bash",
        *slurm_header.header(plans[0], log=log, array=span),
        f"# {len(plans)} runs, the first {plans[0].run_id}. Each element becomes its own run's script.",
        f'run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {to_bash(folders)})',
        *([own] if plans[0].shared is not None else []),
        'exec bash "$run/run.sh"',
    ]
    return "\n".join(lines) + "\n"


def _comment(line: str) -> str:
    """One line of a comment: a recorded plan may hold any text, and what follows an end of line would run."""
    return "".join(character if character.isprintable() else "?" for character in line)


def _is_job(plan: Plan) -> bool:
    """Whether the script is a Slurm job's own; an arm's is not."""
    return plan.queue == "slurm" and not plan.arm


def _restarts(plan: Plan) -> bool:
    """Whether it may be started again by itself, or by Slurm."""
    return bool(plan.restarts) or (_is_job(plan) and not plan.arms)


def _waits(plan: Plan) -> bool:
    return plan.after is not None and plan.queue == "direct" and not plan.arm


def _title(plan: Plan) -> Iterator[str]:
    if plan.arms:
        yield f"# Comparison {plan.run_id} of {len(plan.arms)} arms, each with its own run.sh in RUN/arms."
    else:
        what = plan.script.line() if plan.script else plan.recipe
        batch = f", batch {plan.settings['batch']}" if plan.settings["batch"] else ""
        yield f"# Run {plan.run_id}: {what} in {plan.framework} at {mode(plan)}{batch}."
        if plan.words:
            yield f"# Asked for: {bash_line(plan.words)}; plan.json has every setting."
    yield f"# Written by the launcher. {SUPERVISOR} beside it has the functions that it calls."


def _functions(plan: Plan) -> Iterator[list[str]]:
    """What only this run has, as functions: what it starts, and what ends its container."""
    if plan.arms:
        yield _function("conclude", comparison.command(plan))
        return
    yield _function("trainer", trainer_command.lines(plan))
    by_srun = trainer_command.by_srun(plan)
    if by_srun:
        yield _function("start_nodes", [by_srun])
    wrapped = trainer_command.outliving(plan)
    if wrapped:
        yield _function("remove_container", [bash_line(wrapped.remove)])
        if wrapped.outcome:
            yield _function("ask_exit_code", [bash_line(wrapped.outcome)])
        if plan.queue == "slurm":
            yield _function("stop_container", [bash_line(wrapped.stop)], f" # after ${GRACE} seconds")


def _function(name: str, lines: Sequence[str], comment: str = "") -> list[str]:
    return [f"{name}() {{{comment}", *(f"  {line}" for line in lines), "}"]


def bash_line(words: Sequence[Word]) -> str:
    return " ".join(map(to_bash, words))


def _settings(plan: Plan) -> Iterator[str]:
    """What the functions of the supervisor read of this run."""
    who = "comparison" if plan.arms else "script" if plan.script else "trainer"
    without_result = plan.settings["require_proof"] is False or (plan.script and plan.script.bare) or plan.arms
    result = "" if without_result else "required"
    secrets = SECRETS if not plan.arm and job_environment.own_secrets(plan.secrets, plan.run_dir) else ""
    engine = plan.container.runtime.kind if trainer_command.outliving(plan) and plan.container else ""
    yield f"LAUNCHER_WHO={who} LAUNCHER_RESULT={result or _NONE}"
    yield f"LAUNCHER_ENGINE={engine or _NONE} LAUNCHER_SECRETS={secrets or _NONE}"
    if plan.script:
        signal = plan.script.stop_signal or _NONE
        yield f"LAUNCHER_STOP_SIGNAL={signal} LAUNCHER_STOP_BEFORE={plan.cluster['stop_before']}"
        bare, resumes = ("yes" if value else _NONE for value in (plan.script.bare, plan.script.resume_arguments))
        yield f"LAUNCHER_BARE={bare} LAUNCHER_RESUMES={resumes}"
        if rate := plan.settings["train"].get("rate"):
            yield f"LAUNCHER_RATE={to_bash(rate)}"
    if plan.up:
        yield "LAUNCHER_UP=yes"
    queue = f"slurm LAUNCHER_MAX_REQUEUES={plan.cluster['max_requeues']}" if _is_job(plan) else "direct"
    yield f"LAUNCHER_QUEUE={queue} LAUNCHER_SHARED={'yes' if plan.shared is not None else _NONE}"
    if limit := _limit(plan):
        stop_before = "" if plan.script else f" LAUNCHER_STOP_BEFORE={plan.cluster['stop_before']}"  # else set above
        yield f"LAUNCHER_LIMIT={limit}{stop_before}"
    yield from _notify(plan)
    if _restarts(plan):
        hangs = "yes" if plan.settings["watchdog"]["action"] == "restart" else _NONE
        most = _NONE if plan.restarts is None else plan.restarts
        yield f"LAUNCHER_RESTARTS={most} LAUNCHER_HANGS={hangs} LAUNCHER_PER_NODE={plan.processes}"
    sampled = _sampled_gpus(plan) or _NONE
    yield f"LAUNCHER_TELEMETRY_EVERY={plan.telemetry or _NONE} LAUNCHER_TELEMETRY_GPUS={sampled}"
    if plan.arms:
        assert plan.comparison is not None
        names = [arm.arm for arm in plan.arms]
        yield f"LAUNCHER_ORDER='{' '.join(comparison.order(names, plan.comparison.rounds))}'"
        yield f"LAUNCHER_ARMS='{' '.join(names)}' LAUNCHER_COOL_DOWN={plan.comparison.cool_down}"


def _notify(plan: Plan) -> Iterator[str]:
    if not plan.notify:
        return
    members = {"run": plan.run_id, "name": plan.name, "folder": plan.run_dir, "words": list(plan.words)}
    yield f"LAUNCHER_NOTIFY=({bash_line(plan.notify)})"
    yield f"LAUNCHER_NOTICE={to_bash(json.dumps(members)[1:-1])}"
    sweep = run_ids.sweep_of(plan.run_id)
    yield f"LAUNCHER_SWEEP={sweep or _NONE} LAUNCHER_HIDDEN=({bash_line(list(plan.secrets.values()))})"


def _limit(plan: Plan) -> int:
    """Seconds after which the script ends the run itself; 0 for never."""
    limit = plan.cluster.get("time") if plan.queue == "direct" and not plan.arm else None
    try:
        return 60 * (slurm_units.minutes(str(limit)) or 0) if limit else 0
    except ValueError as error:  # of a damaged record
        raise UsageError(f"cluster.time={error}") from None


def _sampled_gpus(plan: Plan) -> str:
    """Which GPUs telemetry samples, as `telemetry.sh` takes it; empty where the job has none."""
    if not (plan.gpus and plan.telemetry):
        return ""
    return "job" if plan.queue == "slurm" else "taken" if plan.gpu_pool else ""


def _source(plan: Plan) -> Iterator[str]:
    if plan.shared is not None:
        yield "# Whoever owns the folders above could have put others in the place of these."
        own = f'"$LAUNCHER_RUN" "$LAUNCHER_RUN/plan.json" "$LAUNCHER_RUN/{SUPERVISOR}" "$LAUNCHER_CODE"'
        yield f"for LAUNCHER_PATH in {own}; do"
        refuse = 'echo "error: $LAUNCHER_PATH is not $(id -un)\'s, whose run this is" >&2'
        yield f'  [ -O "$LAUNCHER_PATH" ] || {{ {refuse}; exit 1; }}'
        yield "done"
    gone = 'echo "the run folder $LAUNCHER_RUN is gone" >&2'
    yield f'[ -e "$LAUNCHER_RUN/{SUPERVISOR}" ] || {{ {gone}; exit 1; }}'
    yield "# shellcheck source=/dev/null"
    yield f'. "$LAUNCHER_RUN/{SUPERVISOR}" || exit 1'


def _on_node(plan: Plan) -> list[str]:
    """What srun starts the script for, once on each node: the trainer takes the place of this shell, and holds the
    telemetry of its node."""
    if not trainer_command.by_srun(plan):
        return []
    lines = ["start_telemetry"] if plan.telemetry else []
    lines.append("supervise_container_on_node" if trainer_command.outliving(plan) else "trainer")
    return ['if [ "${1-}" = node ]; then', *(f"  {line}" for line in lines), "fi"]


def _start(plan: Plan) -> list[str]:
    return [
        "begin_attempt",
        *(["clear_stale_stop", "explain_last_attempt"] if _is_job(plan) else []),
        "end_if_unwanted",
        *(["end_if_in_vain"] if _is_job(plan) and not plan.arms else []),
        *(["wait_for_others"] if _waits(plan) else []),
        *([] if plan.gpu_pool else ["report_running"]),
    ]


def host_exports(plan: Plan) -> list[str]:
    """Lines that export what a queue's node may lack, as the PATH with the folder of Slurm's programs. Without it bash
    searches the usual folders by a default of its own, and the programs that it starts, as `timeout`, search fewer."""
    return [f"export {name}={to_bash(value)}" for name, value in plan.host_env.items()]


def exports(plan: Plan, env: Mapping[str, str], passed: str = "") -> list[str]:
    """Lines that export what a job finds set: `env`, and the variables in the file `passed`, as bash takes its name. A
    job in a container gets its own variables there, where they can't change the client."""
    lines = []
    if plan.container is None:
        lines += [f". {passed} || exit 1"] if passed else []
        lines += [f"export {name}={to_bash(value)}" for name, value in env.items()]
        lines += ["ulimit -S -c 0 # a core dump would keep the secrets"] if plan.secrets else []
        # From the file into the variable: the text is neither in this script nor in any argument list.
        lines += [f"{name}=$(<{to_bash(path)}) && export {name} || exit 1" for name, path in plan.secrets.items()]
        lines.append('export PYTHONPATH="$LAUNCHER_CODE${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1')
    return lines


def _environment(plan: Plan) -> list[str]:
    if plan.arms:  # an arm's own script takes the rest
        lines = exports(plan, plan.env)
    else:
        passed = f'"$LAUNCHER_RUN/{job_environment.FILE}"' if plan.inherited or plan.passed else ""
        lines = exports(plan, {**user_script.tracker_ids(plan), **plan.env}, passed)
    lines.append(f"export LAUNCHER_RUN_ID={to_bash(plan.run_id)} LAUNCHER_ATTEMPT LAUNCHER_SPEC")
    if plan.script and not plan.arms:
        # Each block of a comparison begins afresh.
        block = "/$LAUNCHER_ATTEMPT" if plan.arm else ""
        lines.append(f'export LAUNCHER_CHECKPOINT_DIR="$LAUNCHER_RUN/checkpoints{block}"')
        lines.append('mkdir -p -m 700 "$LAUNCHER_CHECKPOINT_DIR" || exit 1')
    return lines


def _setup(plan: Plan) -> list[str]:
    """The user's own shell text, at the top level of the script, as it was written for one: many a site's own files
    read variables that are not set."""
    if not plan.setup:
        return []
    failed = """trap 'setup_failed "$?" "$BASH_COMMAND"' ERR # cluster.setup, as given"""
    ended = """trap 'setup_ended "$?" "$BASH_COMMAND"' EXIT"""
    kept = "[[ $(trap -p EXIT) != *setup_ended* ]] || trap - EXIT"  # the lines' own stays
    return [failed, ended, "set +u", *plan.setup, "set -u", "trap - ERR", kept]


def _run(plan: Plan) -> list[str]:
    """GPUs are taken behind the setup, which may start what outlives the run."""
    lines = []
    if plan.gpu_pool:
        lines += [gpu_locks.take(plan.gpus, plan.gpu_pool, plan.run_id, wait=plan.wait_gpus)]
        lines += [gpu_locks.SHOW] if len(plan.gpu_pool) > plan.gpus else []
        lines += ["report_running"]
    if plan.nodes > 1 and not plan.arms and not trainer_command.is_function(plan):
        lines += ["set_rendezvous"]
    if _is_job(plan):
        # DLProf would not survive it.
        possible = plan.script is None or plan.script.stop_signal is not None
        asked = possible and plan.settings["profile"]["tool"] != "dlprof"
        lines += ["stop_before_end yes" if asked else 'stop_before_end ""']
        lines += ["hear_preemption"] if asked and plan.preemption and plan.preemption.heard else []
    lines += [
        "supervise " + ("run_arms" if plan.arms else "start_nodes" if trainer_command.by_srun(plan) else "trainer")
    ]
    return [*lines, *(["gpu_release"] if plan.gpu_pool else []), "end_attempt"]
