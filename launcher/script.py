"""`render(plan) -> run.sh`: one file that a person can read, the same for every place, for bash 4.2 and later.

The only place that quotes for a shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from containers.devices import JOB_GPUS, needs_job_gpus
from containers.runtime import Wrapped
from containers.words import Late, Word, to_bash
from launcher import blocks, contained, engine_text, gpus, profilers, telemetry
from launcher.plan import Plan
from launcher.slurm import header as slurm_header
from launcher.slurm import text as slurm_text

TENSORFLOW_NODE = "recipes.tensorflow_.node"
"""Module that makes a process one of several of TensorFlow's, as torchrun does for torch."""

# What a surrounding job or launcher leaves behind would give this job wrong sizes or another job's rendezvous.
SCRUBBED_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "TORCHELASTIC_",
    "LAUNCHER_",
    "APPTAINERENV_",
    "SINGULARITYENV_",
    "PYXIS_",
)
SCRUBBED_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG")

_STATUS = r"""
taken_over() { [ -e "$RUN/attempts/$((attempt + 1))" ]; } # Slurm may start a run again that it has lost sight of
status() {                                                # state, exit code or null, end or null, reason
  ! taken_over || return 0
  local reason=$4 error
  until error=$(write_status "$1" "$2" "$3" "$reason" 2>&1); do
    echo "$error" >&2
    [ -e "$RUN/.reserve" ] || return 1
    rm -f "$RUN/.reserve" # on a full disk, room enough to say so
    reason="$reason${reason:+; }${error##*: }"
  done
}
write_status() { # one writer, written aside, renamed
  {
    printf '{"schema": 1, "state": "%s", "attempt": %s, "exit_code": %s, ' "$1" "$attempt" "$2" &&
      printf '"started": "%s", "ended": %s, "reason": "%s", ' "$started" "$3" "$4" &&
      printf '"process": {"host": "%s", "boot": "%s", "pid": %s, "start": %s}}\n' "$host" "$boot" "$$" "$birth"
  } >"$RUN/.status.json" && mv -f "$RUN/.status.json" "$RUN/status.json"
}
now() { TZ=UTC0 printf '%(%Y-%m-%dT%H:%M:%SZ)T' -1; }
""".strip()

_ATTEMPT = r"""
if [ ! -e "$RUN/plan.json" ]; then
  echo "the run folder $RUN is gone" >&2
  exit 1
fi
[ -d "$RUN/attempts" ] || mkdir "$RUN/attempts" || exit 1
attempt=1
# Two starts of one run never share a number: it is whose mkdir succeeds.
until error=$(mkdir "$RUN/attempts/$attempt" 2>&1); do
  if [ ! -e "$RUN/attempts/$attempt" ]; then
    echo "$error" >&2
    exit 1
  fi
  attempt=$((attempt + 1))
done
logs=$RUN/attempts/$attempt
exec >>"$logs/stdout.log" 2>>"$logs/stderr.log" </dev/null
printf %4096s >"$RUN/.reserve"
started=$(now)
read -r host </proc/sys/kernel/hostname
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/$$/stat
fields=(${stat##*) })
birth=${fields[19]}
""".strip()

_REFUSED = r"""
if [ -e "$RUN/cancelled" ]; then
  status cancelled null "\"$(now)\"" "cancelled before it started"
  exit 1
elif [ -e "$RUN/STOP" ]; then
  status stopped null "\"$(now)\"" "before it started"
  exit 85
fi
""".strip()

_STARTS = r"""
status running null null "" & # while the job starts
saying=$!
""".strip()

_RUN = r"""
signalled=
# To everything of this run but this shell, which stays to write down how it ended.
trap 'signalled=TERM; trap "" TERM INT HUP; kill -TERM 0__STOP__' TERM INT HUP
(
  trap : TERM INT HUP
  __COMMAND__
  code=$?
  __OUTCOME__
  echo "$code" >"$logs/exit_code"
  exit "$code"
) &
child=$!
__SAMPLE__
wait "$saying"
waited=137
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  waited=$?
done
# A wait that a trap interrupts can return anything: the file that the child left counts, where it could be written.
code=$(cat "$logs/exit_code" 2>/dev/null)
code=${code:-$waited}
__REMOVE__
""".strip()

_ENDING = r"""
ended="\"$(now)\""
if taken_over; then
  exit 1
elif [ "$code" = 0 ]; then
  status done 0 "$ended" ""
elif [ -e "$RUN/cancelled" ]; then
  status cancelled "$code" "$ended" "cancelled"
__REQUEUE__
elif [ -e "$logs/stopped.json" ]; then
  status stopped "$code" "$ended" "" # the marker says at which step
__SIGNALLED__
elif [ "$code" -gt 128 ]; then
  status failed "$code" "$ended" "the trainer was killed by signal $((code - 128))"
elif [ "$code" = 2 ]; then
  status failed "$code" "$ended" "the trainer refused its settings"
else
  status failed "$code" "$ended" "the trainer ended with exit code $code"
fi
rm -f "$RUN/.reserve"
exit "$code"
""".strip()


_SIGNALLED = r"""
elif [ -n "$signalled" ]; then
  status failed "$code" "$ended" "ended by a signal from outside"
""".strip()


def render(plan: Plan) -> str:
    """The script of a bound plan. Runs under bash 4.2 and later with the usual commands of a Linux host."""
    slurm = plan.queue == "slurm" and not plan.arm  # an arm is no job of its own
    header = slurm_header.header(plan, log=f"{plan.run_dir}/launch.log") if slurm else []
    sections = [
        "\n".join(["#!/usr/bin/env bash", *header, *_title(plan)]),
        "\n".join(["set -u", "umask 077", f"RUN={quote(plan.run_dir)}", f"CODE={quote(plan.code_dir)}"]),
        _ending_of_container(plan),
        telemetry.shell(plan.telemetry, _sampled_gpus(plan)) if plan.telemetry else "",
        _on_each_node(plan) if plan.nodes > 1 and not plan.arms else "",
        blocks.function(plan) if plan.arms else "",
        _STATUS,
        _ATTEMPT,
        slurm_text.STALE_STOP if slurm else "",
        gpus.not_wanted(_REFUSED) if plan.gpu_pool else f"{_REFUSED}\n{_STARTS}",
        _environment(plan),
        _setup(plan.setup),
        _shared_gpus(plan),
        _rendezvous(plan) if plan.nodes > 1 and not plan.arms else "",
        _time_limit(plan) if slurm else "",
        _run(plan),
        gpus.RELEASE if plan.gpu_pool else "",
        _ending(plan),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def array(plans: Sequence[Plan], *, log: str, folders: str, parallel: int | None) -> str:
    """The script of a job array: element N runs the script of the run folder on line N+1 of the file `folders`."""
    span = f"0-{len(plans) - 1}" + (f"%{parallel}" if parallel else "")
    lines = [
        "#!/usr/bin/env bash",
        *slurm_header.header(plans[0], log=log, array=span),
        f"# {len(plans)} runs, the first {plans[0].run_id}. Each element becomes its own run's script.",
        f'run=$(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" {quote(folders)})',
        'exec bash "$run/run.sh"',
    ]
    return "\n".join(lines) + "\n"


def quote(text: str) -> str:
    """One word of shell that means exactly this text."""
    return to_bash(text)


def command(plan: Plan) -> tuple[Word, ...]:
    """The argument list that starts the trainer on one node, in its container or not."""
    bare = plan.script is not None and plan.script.bare
    started = ("-m", *plan.trainer_argv)
    if plan.script and bare:
        started = (plan.script.file_in(plan.code_dir), *plan.script.arguments)
    profiler = profilers.prefix(plan.settings, plan.run_dir, bare=bare)
    if plan.processes == 1 and plan.nodes == 1:
        return (*profiler, plan.python, *started)
    if plan.framework == "tensorflow" and plan.script is None:
        workers, number = Late("LAUNCHER_WORKERS", before="--workers="), Late("SLURM_NODEID", before="--number=")
        return (*profiler, plan.python, "-m", TENSORFLOW_NODE, workers, number, *started)
    where: tuple[Word, ...] = ("--standalone",)
    if plan.nodes > 1:
        # Ranks follow the node's number, so that a requeue keeps them.
        rank, head = Late("SLURM_NODEID", before="--node-rank="), Late("MASTER_ADDR", before="--master-addr=")
        where = (f"--nnodes={plan.nodes}", rank, head, Late("MASTER_PORT", before="--master-port="))
    torchrun = (*profiler, plan.python, "-m", "torch.distributed.run", *where, f"--nproc-per-node={plan.processes}")
    return (*torchrun, *started)


def _rendezvous(plan: Plan) -> str:
    if plan.framework == "tensorflow" and plan.script is None:
        return f"{slurm_text.RENDEZVOUS}\n{slurm_text.WORKERS}"
    return slurm_text.RENDEZVOUS


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
    own = {**plan.host_env, **({} if plan.container else plan.env)}
    lines = [f"export {name}={quote(value)}" for name, value in own.items()]
    if plan.container is None:
        # From the file into the variable: the text is neither in this script nor in any argument list.
        lines += [f"{name}=$(<{quote(path)}) && export {name} || exit 1" for name, path in plan.secrets.items()]
        lines.append('export PYTHONPATH="$CODE" PYTHONUNBUFFERED=1')
    lines.append(
        f'export LAUNCHER_RUN_ID={quote(plan.run_id)} LAUNCHER_ATTEMPT=$attempt LAUNCHER_SPEC="$RUN/plan.json"'
    )
    return "\n".join(lines)


def _setup(lines: tuple[str, ...]) -> str:
    return "\n".join(["# cluster.setup, as given", *lines]) if lines else ""


def _shared_gpus(plan: Plan) -> str:
    """What takes the GPUs of a host that has no scheduler to give them. Behind the setup, which may start what outlives
    the run."""
    if not plan.gpu_pool:
        return ""
    chosen_late = len(plan.gpu_pool) > plan.gpus
    words = gpus.take(plan.gpus, plan.gpu_pool, plan.run_id, wait=plan.wait_gpus, chosen_late=chosen_late)
    return f"{gpus.LOOK}\n{gpus.TAKE}\n{words}\n{_STARTS}"


def _run(plan: Plan) -> str:
    """The trainer from its start to its exit code, with the sampling of telemetry around it."""
    text = _around(plan).replace("__COMMAND__", _command(plan))
    if not _samples_here(plan):
        return text.replace("__SAMPLE__\n", "")
    # Behind the start of the trainer, which neither waits for it nor holds it.
    text = text.replace("__SAMPLE__", f"{telemetry.START}\nsampler=${{!-}}")
    return "\n".join([text, telemetry.LET_GO, 'wait "$sampler" 2>/dev/null'])


def _samples_here(plan: Plan) -> bool:
    """Whether the script's own shell samples. On several nodes each node's does; but those of Pyxis have no shell on
    the host, so that there only the first node is sampled."""
    return plan.telemetry > 0 and (plan.nodes == 1 or _is_pyxis(plan))


def _sampled_gpus(plan: Plan) -> str:
    """A word of bash for the job's GPUs as nvidia-smi takes them; empty where it has none."""
    if not plan.gpus:
        return ""
    if plan.queue == "slurm":
        return '"${CUDA_VISIBLE_DEVICES:-${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS-}}}"'
    return '"$gpus"' if plan.gpu_pool else ""


def _is_pyxis(plan: Plan) -> bool:
    return plan.container is not None and plan.container.runtime.kind == "pyxis"


def _command(plan: Plan) -> str:
    """What starts the trainer, from the shell that then writes down its exit code."""
    if plan.arms:
        return "ended=\n  trap 'ended=yes' TERM INT HUP\n  " + blocks.COMMAND
    if plan.nodes > 1 and not _is_pyxis(plan):
        # --export: without it, srun hands on what sbatch was told to export, which is nothing.
        words = ["srun", "--ntasks-per-node=1", f"--nodes={plan.nodes}", "--kill-on-bad-exit=0", "--export=ALL"]
        if plan.cluster["cpus"]:
            words.append(f"--cpus-per-task={plan.cluster['cpus']}")  # srun does not inherit it from sbatch
        return f'{" ".join(words)} bash "$RUN/run.sh" node'
    return "\n  ".join(_start(plan))


def _on_each_node(plan: Plan) -> str:
    """What srun starts this script for, once on each node."""
    *before, last = _start(plan)
    if plan.telemetry and not _samples_here(plan):
        before.append(telemetry.START)  # held by the trainer itself, which takes this shell's place
    outliving = _outliving(plan)
    last = engine_text.on_node(last, outliving) if outliving else f"exec {last}"
    return "\n  ".join(['if [ "${1-}" = node ]; then', *before, last]) + "\nfi"


def _start(plan: Plan) -> list[str]:
    """Lines of shell, the last of which is the command itself."""
    if plan.settings["profile"]["tool"] in ("nsys", "ncu"):
        return [f'mkdir -p "$RUN/{profilers.FOLDER}" || exit 1', *_start_in_place(plan)]
    return _start_in_place(plan)


def _start_in_place(plan: Plan) -> list[str]:
    if plan.container is None:
        return [*_working_folder(plan), " \\\n    ".join(_grouped(command(plan)))]
    argv = command(plan)
    if plan.container.runtime.kind == "pyxis" and plan.nodes > 1:
        argv = _read_inside(argv)
    wrapped = contained.wrapped(plan, argv)
    slurm_gives = plan.queue == "slurm" and needs_job_gpus(_devices(plan), plan.container.runtime.kind)
    lines = [JOB_GPUS.replace("\n", "\n  ")] if slurm_gives else []
    lines += [f"[ -d {quote(each)} ] || mkdir -p -m 700 {quote(each)} || exit 1" for each in wrapped.folders]
    lines += [engine_text.REMOVE_STALE] if wrapped.remove else []
    lines += [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    return [*lines, " \\\n    ".join(map(to_bash, wrapped.argv))]


def _outliving(plan: Plan) -> Wrapped | None:
    """The container where it isn't a child of the script."""
    if plan.container is None or plan.arms or plan.container.runtime.kind not in ("docker", "podman"):
        return None
    return contained.wrapped(plan, command(plan))


def _around(plan: Plan) -> str:
    """What surrounds the command in the shell that outlives it."""
    wrapped = _outliving(plan) if plan.nodes == 1 else None
    parts = {"__STOP__": "", "  __OUTCOME__\n": "", "\n__REMOVE__": ""}
    if wrapped:
        how = engine_text.outcome(wrapped)
        parts["__STOP__"] = engine_text.STOP if plan.queue == "slurm" else ""
        parts["  __OUTCOME__\n"] = f"  {how}\n" if how else ""
        parts["\n__REMOVE__"] = f"\n{engine_text.remove_left(wrapped)}"
    text = _RUN
    for place, part in parts.items():
        text = text.replace(place, part)
    return text


def _ending_of_container(plan: Plan) -> str:
    wrapped = _outliving(plan)
    return engine_text.functions(wrapped, slurm=plan.queue == "slurm") if wrapped else ""


def _time_limit(plan: Plan) -> str:
    """DLProf does not survive being interrupted: where it runs, the time limit's warning is let pass."""
    return slurm_text.UNWARNED if plan.settings["profile"]["tool"] == "dlprof" else slurm_text.TIME_LIMIT


def _working_folder(plan: Plan) -> list[str]:
    """Our own trainers start where the code is; a script by itself, where it is to work."""
    if plan.script is None or not plan.script.bare:
        return ['cd "$CODE" || exit 1']
    folder = quote(plan.script.folder(plan.run_dir))
    return [f"{f'mkdir -p {folder} && ' if not plan.script.workdir else ''}cd {folder} || exit 1"]


def _devices(plan: Plan) -> Any:
    return plan.container.devices if plan.container else None


def _read_inside(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """The same command with its late words read by a shell in the container: only there each task has its number."""
    late = " ".join(f'"{each.before}${each.variable}"' for each in argv if isinstance(each, Late))
    plain = tuple(each for each in argv if isinstance(each, str))
    # Behind `PYTHON -m MODULE`, which are the first three words.
    text = f'python=$1 module=$3; shift 3; exec "$python" -m "$module" {late} "$@"'
    return ("/bin/sh", "-c", text, "sh", *plain)


def _ending(plan: Plan) -> str:
    text = _ending_of_a_trainer(plan)
    if plan.script is None:
        return text
    # What the exit codes of somebody else's script mean, only that script knows.
    return text.replace("the trainer refused its settings", "the script ended with exit code 2").replace(
        "the trainer", "the script"
    )


def _ending_of_a_trainer(plan: Plan) -> str:
    if plan.queue != "slurm" or plan.arm:
        return _ENDING.replace("__SIGNALLED__", _SIGNALLED).replace("__REQUEUE__\n", "")
    requeue = slurm_text.REQUEUE.replace("__MAX_REQUEUES__", str(plan.cluster["max_requeues"]))
    return _ENDING.replace("__SIGNALLED__", slurm_text.INTERRUPTED).replace("__REQUEUE__", requeue)


def _grouped(argv: tuple[Word, ...]) -> list[str]:
    """The words of the command, grouped as they are best read: each module with its `-m`, then a word a line."""
    quoted = [to_bash(word) for word in argv]
    modules = [index for index, word in enumerate(argv) if word == "-m"]
    if not modules:
        return [" ".join(quoted)]  # a script by itself, as its user would type it
    last = modules[-1] if "--" not in argv else max(each for each in modules if each < argv.index("--"))
    end = argv.index("--") if "--" in argv else len(argv)
    words = [*quoted[last + 2 : end], *([" ".join(quoted[end:])] if end < len(argv) else [])]
    if not {"torch.distributed.run", TENSORFLOW_NODE} & {each for each in argv if isinstance(each, str)}:
        return [" ".join(quoted[: last + 2]), *words]
    return [" ".join(quoted[:last]), " ".join(quoted[last : last + 2]), *words]
