"""`render(plan) -> run.sh`: one file that a person can read, the same for every place a job can go, for any bash 4.

The only place that quotes for a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from launcher.plan import Plan

# What a surrounding job or launcher leaves behind would give this job wrong sizes or another job's rendezvous.
SCRUBBED_PREFIXES = ("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_", "OMPI_", "TORCHELASTIC_", "LAUNCHER_")
SCRUBBED_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")

_STATUS = r"""
status() { # state, exit code or null, end or null, reason: one writer, written aside, renamed
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$attempt" "$2" &&
      printf '"started": "%s", "ended": %s, "reason": "%s", ' "$started" "$3" "$4" &&
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$$" "$birth"
  } >"$RUN/.status.json" && mv -f "$RUN/.status.json" "$RUN/status.json"
}
now() { date -u +%Y-%m-%dT%H:%M:%SZ; }
""".strip()

_ATTEMPT = r"""
attempt=1
while [ -e "$RUN/attempts/$attempt" ]; do attempt=$((attempt + 1)); done
logs=$RUN/attempts/$attempt
mkdir -p "$logs" || exit 1
exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
started=$(now)
host=$(uname -n)
boot=$(cat /proc/sys/kernel/random/boot_id)
read -r stat </proc/$$/stat
fields=(${stat##*) })
birth=${fields[19]}
""".strip()

_REFUSED = r"""
if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
fi
status running null null ""
""".strip()

_RUN = r"""
signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0' TERM INT HUP
(
  trap : TERM INT HUP
  __COMMAND__
  echo $? >"$logs/exit_code"
) &
child=$!
# A wait that a trap interrupts can return anything: the file that the child leaves behind is what counts.
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
code=$(cat "$logs/exit_code" 2>/dev/null) || code=137
""".strip()

_ENDING = r"""
ended="\"$(now)\""
if [ "$code" = 0 ]; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "asked to stop, state saved"
elif [ -n "$signalled" ]; then
  status failed "$code" "$ended" "ended by a signal from outside"
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the trainer was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "the trainer refused its settings"
else
  status failed "$code" "$ended" "the trainer ended with exit code $code"
fi
exit "$code"
""".strip()


def render(plan: Plan) -> str:
    """The script of a bound plan. Runs under bash 4 and later with the usual commands of a Linux host."""
    sections = [
        "\n".join(["#!/usr/bin/env bash", *_title(plan)]),
        "\n".join(["set -u", "umask 077", f"RUN={quote(plan.run_dir)}", f"CODE={quote(plan.code_dir)}"]),
        _STATUS,
        _ATTEMPT,
        _REFUSED,
        _environment(plan),
        _setup(plan.setup),
        _RUN.replace("__COMMAND__", _command(plan)),
        _ENDING,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def quote(text: str) -> str:
    """One word of shell that means exactly this text."""
    return shlex.quote(text)


def command(plan: Plan) -> tuple[str, ...]:
    """The argument list that starts the trainer on one node."""
    if plan.processes == 1 and plan.nodes == 1:
        return (plan.python, "-m", *plan.trainer_argv)
    torchrun = (plan.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plan.processes}")
    return (*torchrun, "-m", *plan.trainer_argv)


def _title(plan: Plan) -> Iterable[str]:
    how = f" ({plan.mechanism})" if plan.mechanism else ""
    level, batch = plan.settings["amp"]["level"], plan.settings["batch"]
    yield f"# Run {plan.run_id}: {plan.recipe} in {plan.framework} at {level}{how}, batch {batch}."
    yield "# Written by the launcher. Everything it reads and writes is under RUN and CODE."


def _environment(plan: Plan) -> str:
    lines = [f"export {name}={quote(value)}" for name, value in plan.env.items()]
    # From the file into the variable: the text is neither in this script nor in any argument list.
    lines += [f"{name}=$(<{quote(path)}) && export {name} || exit 1" for name, path in plan.secrets.items()]
    lines += [
        f'export LAUNCHER_RUN_ID={quote(plan.run_id)} LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"',
        "export PYTHONPATH=\"$CODE\" PYTHONUNBUFFERED=1",
    ]
    return "\n".join(lines)


def _setup(lines: tuple[str, ...]) -> str:
    return "\n".join(["# cluster.setup, as given", *lines]) if lines else ""


def _command(plan: Plan) -> str:
    words = " \\\n    ".join(_grouped(command(plan)))
    return f'cd "$CODE" || exit 1\n  {words}'


def _grouped(argv: tuple[str, ...]) -> list[str]:
    """The words of the command, a line each from the first of the trainer's own on."""
    quoted = [quote(word) for word in argv]
    first = max((index for index, word in enumerate(argv) if word == "-m"), default=0) + 2
    return [" ".join(quoted[:first]), *quoted[first:]]
