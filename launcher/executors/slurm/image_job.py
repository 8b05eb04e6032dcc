"""A job that fetches an image, on a compute node, before the jobs that run in it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import launcher
from containers.words import to_bash
from launcher.plan.model import Plan
from launcher.script.slurm_header import header


def wanted(plan: Plan) -> bool:
    """Whether the plan's image has to be fetched still: it may have come since the plan was made."""
    return plan.container is not None and bool(plan.container.pull) and not Path(plan.container.image).exists()


def script(plan: Plan, *, log: str) -> str:
    """What is submitted: `image pull` by the launcher that plans, whose Python and folder the nodes have to see."""
    chosen = plan.container
    assert chosen is not None
    alone = dataclasses.replace(plan, name="image-pull", nodes=1, gpus=0)
    argv = [sys.executable, "-m", "launcher", "image", "pull", chosen.pull]
    argv += [f"container={chosen.runtime.kind}", f"container.cache={Path(chosen.image).parent}"]
    lines = [
        "#!/usr/bin/env bash",
        *header(alone, log=log),
        f"# Fetches {chosen.asked} for run {plan.run_id}, and for whoever asks next.",
        *(f"export {name}={to_bash(value)}" for name, value in plan.host_env.items()),
        f"export PYTHONPATH={to_bash(str(Path(launcher.__file__).parents[1]))}",
        "exec " + " ".join(map(to_bash, argv)),
    ]
    return "\n".join(lines) + "\n"
