"""The command of a run: the trainer's argument list, in its container or not, on one node or by srun on each. Pure."""

from __future__ import annotations

import posixpath

from amp_launcher import records
from launcher.containers.devices import JOB_GPUS, needs_job_gpus
from launcher.containers.runtime import Wrapped
from launcher.containers.words import EnvArg, Word, to_bash
from launcher.plan import container, profilers
from launcher.plan.model import Plan

NODES = {"torch": "amp_launcher.torch.node", "tensorflow": "amp_launcher.tensorflow.node"}
"""Modules that make what they start a part of a job on several nodes."""


RESUMING = '${LAUNCHER_AGAIN[@]+"${LAUNCHER_AGAIN[@]}"}'
"""The further arguments of a bare script from its second attempt on; a wrapper adds them by itself. So that an empty
array counts as set in bash 4.2 too."""
RANKS = "ranks"
"""Folder of a run in which Paddle leaves what each of several processes says."""


def command(plan: Plan) -> tuple[Word, ...]:
    """The argument list that starts the trainer on one node, in its container or not."""
    return tuple(word for line in _lines(plan) for word in line)


def _lines(plan: Plan) -> list[tuple[Word, ...]]:
    """The words of the command, a line each as they are best read: each module with its `-m`."""
    bare = plan.script is not None and plan.script.bare
    own: list[tuple[Word, ...]] = [("-m", plan.trainer), (f"run={plan.run_dir}",)]
    if plan.script and bare:  # as its user would type it
        own = [(plan.script.file_in(plan.code_dir), *plan.script.arguments)]
    profiler = profilers.prefix(plan.settings, plan.run_dir, bare=bare)
    if plan.script and plan.script.command:
        return [(*profiler, *own[0])]
    python = (*profiler, plan.python)
    if plan.processes == 1 and plan.nodes == 1:
        return [(*python, *own[0]), *own[1:]]
    if is_function(plan):
        tasks = (f"{plan.code_dir}/amp_launcher/job/tasks.py", f"--per-node={plan.processes}")
        if plan.queue != "slurm":
            return [(*python, *tasks), *own]
        return [(*python, *tasks, f"--nodes={plan.nodes}", EnvArg("SLURM_NODEID", before="--node=")), *own]
    if plan.framework == "paddle":  # which starts files alone, as `amp_launcher/paddle/rank.py MODULE ...`
        launch = ("-m", "paddle.distributed.launch", f"--nproc_per_node={plan.processes}")
        return [
            (*python, *launch, f"--log_dir={plan.run_dir}/{RANKS}"),
            (f"{plan.code_dir}/amp_launcher/paddle/rank.py", own[0][1]),
            *own[1:],
        ]
    torchrun, per_node = ("-m", "torch.distributed.run"), f"--nproc-per-node={plan.processes}"
    if plan.nodes == 1:
        return [(*python, *torchrun, "--standalone", per_node), *own]
    if bare:  # in an image that may be too old for anything of ours; ranks follow the node's number as they do there
        rank, head = EnvArg("SLURM_NODEID", before="--node-rank="), EnvArg("MASTER_ADDR", before="--master-addr=")
        where = (f"--nnodes={plan.nodes}", rank, head, EnvArg("MASTER_PORT", before="--master-port="))
        return [(*python, *torchrun, *where, per_node), *own]
    workers, number = EnvArg("LAUNCHER_WORKERS", before="--workers="), EnvArg("SLURM_NODEID", before="--number=")
    node = (*python, "-m", NODES[plan.framework], workers, number)
    return [(*node, *((*torchrun, per_node) if plan.framework == "torch" else ())), *own]


def lines(plan: Plan) -> list[str]:
    """Lines of bash that start the trainer, and leave its exit code. Where srun starts them on each node, the trainer
    takes the place of the shell, unless that has to outlive its container's client."""
    *first, last = _start(plan)
    return [*first, f"exec {last}" if by_srun(plan) and not outliving(plan) else last]


def is_function(plan: Plan) -> bool:
    return plan.script is not None and plan.script.file == records.FUNCTION


def by_srun(plan: Plan) -> str:
    """The line that starts this script on each node, where it starts the trainer; empty where nothing needs it."""
    if plan.nodes == 1 or plan.arms or is_pyxis(plan):
        return ""
    ends_others = int(is_function(plan))  # whose tasks don't know of each other
    words = ["srun", "--ntasks-per-node=1", f"--nodes={plan.nodes}", f"--kill-on-bad-exit={ends_others}"]
    if plan.cluster["cpus"]:
        words.append(f"--cpus-per-task={plan.cluster['cpus']}")  # srun does not inherit it from sbatch
    return f'{" ".join(words)} bash "$LAUNCHER_RUN/run.sh" node'


def outliving(plan: Plan) -> Wrapped | None:
    """The container where it isn't a child of the script."""
    if plan.container is None or plan.arms or plan.container.runtime.kind not in ("docker", "podman"):
        return None
    return container.wrapped(plan, command(plan))


def is_pyxis(plan: Plan) -> bool:
    return plan.container is not None and plan.container.runtime.kind == "pyxis"


def _start(plan: Plan) -> list[str]:
    """Lines of shell, the last of which is the command itself."""
    *before, last = _start_in_place(plan)
    if plan.settings["profile"]["tool"] in ("nsys", "ncu"):
        before = [f'mkdir -p "$LAUNCHER_RUN/{profilers.FOLDER}" || exit 1', *before]
    if plan.script and plan.script.bare and plan.script.resume_arguments and not plan.arm:
        words = " ".join(map(to_bash, plan.script.resume_arguments))
        before = [f'[ "$LAUNCHER_ATTEMPT" = 1 ] || LAUNCHER_AGAIN=({words})', *before]
        last = f"{last} {RESUMING}"
    return [*before, last]


def _start_in_place(plan: Plan) -> list[str]:
    if plan.container is None:
        return [*_working_folder(plan), " \\\n    ".join(" ".join(map(to_bash, line)) for line in _lines(plan))]
    argv = command(plan)
    if plan.container.runtime.kind == "pyxis" and plan.nodes > 1:
        argv = _read_inside(argv)
    wrapped = container.wrapped(plan, argv)
    slurm_gives = plan.queue == "slurm" and needs_job_gpus(plan.container.devices, plan.container.runtime.kind)
    lines = JOB_GPUS.splitlines() if slurm_gives else []
    own = (plan.script.folder(plan.run_dir),) if plan.script and plan.script.bare and not plan.script.workdir else ()
    folders = (*wrapped.folders, *own)
    lines += [f"[ -d {to_bash(folder)} ] || mkdir -p -m 700 {to_bash(folder)} || exit 1" for folder in folders]
    lines += _links(plan) if own else []
    lines += ["remove_stale_container"] if wrapped.remove else []
    lines += [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    return [*lines, " \\\n    ".join(map(to_bash, wrapped.argv))]


def _working_folder(plan: Plan) -> list[str]:
    """Our own trainers start where the code is; a script by itself, where it is to work."""
    if plan.script is None or not plan.script.bare:
        return ['cd "$LAUNCHER_CODE" || exit 1']
    folder = to_bash(plan.script.folder(plan.run_dir))
    return [*([] if plan.script.workdir else [f"mkdir -p {folder} || exit 1"]), *_links(plan), f"cd {folder} || exit 1"]


def _links(plan: Plan) -> list[str]:
    """Lines that link the inputs of a bare script in the folder of its own; an earlier attempt may have."""
    assert plan.script is not None
    folder = plan.script.folder(plan.run_dir)
    lines = []
    for name, path in plan.script.inputs.items():
        link = to_bash(f"{folder}/{name}")
        if posixpath.basename(parent := posixpath.dirname(name)) not in ("", ".."):
            lines.append(f"mkdir -p {to_bash(f'{folder}/{parent}')} || exit 1")
        # Behind a failed ln: another node may have made the link meanwhile.
        lines.append(f"[ -e {link} ] || ln -sT {to_bash(path)} {link} || [ -L {link} ] || exit 1")
    return lines


def _read_inside(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """The same command with its late words read by a shell in the container: only there each task has its number."""
    plain: list[str] = []
    words: list[str] = []
    for word in argv:
        if isinstance(word, EnvArg):
            words.append(f'"{word.before}${word.variable}"')
        else:
            assert isinstance(word, str)
            plain.append(word)
            words.append(f'"${{{len(plain)}}}"')
    return ("/bin/sh", "-c", f"exec {' '.join(words)}", "sh", *plain)
