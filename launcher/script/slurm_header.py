"""The `#SBATCH` lines of a plan, which sbatch reads from the top of its script. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from launcher.config.slurm_flags import NAMED
from launcher.plan.model import Plan


def header(plan: Plan, *, log: str, array: str | None = None) -> list[str]:
    return [f"#SBATCH {option}" for option in options(plan, log=log, array=array)]


def options(plan: Plan, *, log: str, array: str | None = None) -> list[str]:
    """The options of sbatch, one word each."""
    words = resources(plan, _word)
    words += [
        f"--signal=B:USR1@{plan.cluster['stop_before']}",
        # Its terminals end with it: if Slurm started it again, nobody would know.
        "--no-requeue" if plan.up else "--requeue",
        "--open-mode=append",
        f"--output={_word(log)}",
        # Nothing of the submitter's environment, which may hold tokens: the script sets what the job needs.
        "--export=NIL",
    ]
    if array is not None:
        words.append(f"--array={array}")
    return words


def resources(plan: Plan, spelled: Callable[[str], str] = str) -> list[str]:
    """The options that sbatch and srun share."""
    cluster = plan.cluster
    words = [f"--job-name={plan.name}", f"--nodes={plan.nodes}", "--ntasks-per-node=1"]
    # One option of all: sbatch takes the last --gres alone.
    gres = [flag.partition("=")[2] for flag in cluster["flags"] if flag.startswith("--gres=")]
    if plan.gpus:
        count = f"{plan.gpu_type}:{plan.gpus}" if plan.gpu_type else f"{plan.gpus}"
        if cluster["gpu_flag"] == "gres":
            gres.insert(0, f"gpu:{count}")
        else:
            words.append(f"--gpus-per-node={count}")
    if gres:
        words.append(f"--gres={spelled(','.join(gres))}")
    for flag, key in NAMED.items():
        value = cluster[key]
        if value is not None:
            words.append(f"--{flag}={spelled(str(value))}")
    for flag in cluster["flags"]:
        name, equals, value = flag.partition("=")
        if name != "--gres":
            words.append(f"{name}{equals}{spelled(value)}")
    return words


def shape(plan: Plan) -> tuple[str, ...]:
    """What runs of one job array must have in common."""
    return tuple(options(dataclasses.replace(plan, name=""), log=""))


def _word(text: str) -> str:
    """One word of a `#SBATCH` line, which sbatch splits as a shell does, without expansion."""
    if re.fullmatch(r"[\w@%+=:,./&|*!()\[\]-]*", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
