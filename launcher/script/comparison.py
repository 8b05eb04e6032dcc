"""What only a comparison's run.sh has: the order of its blocks, and the command that writes its result. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from launcher.containers.words import EnvArg, Word, to_bash
from launcher.plan import container
from launcher.plan.model import Plan

LAUNCHER = "launcher.zip"
"""Of a comparison's folder: the launcher's own modules, since what the arms run in holds none of them."""


def command(plan: Plan) -> list[str]:
    """Lines of bash that write the result of the arms, once, on the first node."""
    module = ("-m", "launcher.compare.write_result")
    argv: tuple[Word, ...] = (
        plan.python,
        *module,
        EnvArg("LAUNCHER_RUN"),
        EnvArg("LAUNCHER_OUTCOME"),
        EnvArg("LAUNCHER_ATTEMPT"),
    )
    if plan.container is None:
        # From where no other launcher lies, which would come first.
        return ['cd "$LAUNCHER_RUN" || exit 1', f'PYTHONPATH="$LAUNCHER_RUN/{LAUNCHER}" {" ".join(map(to_bash, argv))}']
    from launcher.containers.runtimes import wrap  # which jobs without a container do without

    described = container.describe(dataclasses.replace(plan, nodes=1, secrets={}), argv)
    described = dataclasses.replace(
        described,
        environment={**described.environment, "PYTHONPATH": f"{plan.run_dir}/{LAUNCHER}"},
        workdir=plan.run_dir,
        devices=(),  # it computes nothing
    )
    runtime = plan.container.runtime
    # Pyxis starts its containers by srun, on all nodes.
    words = tuple("--nodes=1" if word.startswith("--nodes=") else word for word in runtime.command)
    wrapped = wrap(described, dataclasses.replace(runtime, command=words))
    exports = [f"export {name}={to_bash(value)}" for name, value in wrapped.environment.items()]
    return [*exports, " \\\n    ".join(map(to_bash, wrapped.argv))]


def order(arms: Sequence[str], rounds: int) -> list[str]:
    """The blocks: each round has one of every arm, every other round backwards."""
    return [arm for number in range(rounds) for arm in (arms if number % 2 == 0 else reversed(arms))]
