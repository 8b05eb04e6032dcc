"""Comparisons: arms of one job, measured in turn inside one run.

    RUN_ROOT/<run id>/            a run like any other: one script, one job, one state
    RUN_ROOT/<run id>/blocks      the blocks that were measured: arm and exit code, a line each
    RUN_ROOT/<run id>/arms/<n>/   a run folder for each arm, an attempt for each of its blocks

Each block of an arm resumes from the arm's own checkpoint, so that it is one training run, whose loss can be compared
step by step. A user's own script is started afresh for each block, and ended after so many optimizer steps.

In each round every arm has one block, every other round backwards (A B B A): drift over time, as of a card that warms
up, affects all arms alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amp_launcher.around.script import in_image
from amp_launcher.typed import leaves, plain, show
from launcher.config.parse import Override, own_settings
from launcher.config.schema import OWN_FOLDER, TRAINING_KEYS, Launch, text_key
from launcher.errors import UsageError
from launcher.plan import user_script
from launcher.plan.model import LEAST, Compare, Plan, Published
from launcher.runs import arms

if TYPE_CHECKING:
    from launcher.config.spec import JobSpec
    from launcher.config.sweep import Cell

PREFIX = "compare."

_PLACE = "arms run one after another in the same place, on the same devices"
_SAME = {
    "recipe": "arms are one job in several modes",
    "seed": "arms begin with the same weights and see the data in the same order",
    "data": "arms are trained on the same data",
    **dict.fromkeys(("nodes", "gpus", "visible_gpus", "cluster", "secrets"), _PLACE),
    **dict.fromkeys(("name", "run_root", "after", "wait", "detach", "wait_gpus"), "a comparison is one run"),
}
"""What can't differ between arms, and why."""

_ONE_ARM = "compare needs arms to compare"


def split_flags(words: Sequence[str], base: Compare | None = None) -> tuple[Compare, list[str]]:
    """The settings of the comparison among the words, and the other words. Raises `UsageError`."""
    values, rest = own_settings(words, PREFIX, Compare)
    return dataclasses.replace(base or Compare(), **values), rest


def check_words(overrides: Sequence[Override]) -> None:
    """Refuse what a comparison decides itself. Raises `UsageError`."""
    for override in overrides:
        if override.key in ("steps", "epochs") or override.key.partition(".")[0] == "checkpoint":
            raise UsageError(
                f"{override.typed}: a comparison measures compare.rounds blocks of compare.steps steps and saves after "
                "each; say compare.steps=N"
            )


def check_listed(cell: Cell) -> None:
    """Refuse words that list no arms. Raises `UsageError`."""
    if not cell.swept:
        texts = [override for override in cell.words if text_key(override.key) and "," in str(override.values[0])]
        one = "".join(f"; {text.typed} is one text, {text.key}=choice(...) lists several" for text in texts)
        raise UsageError(f"{_ONE_ARM}: list several values, as amp=o0,o1,o2 (the first is the control){one}")


def check_arms(specs: Sequence[JobSpec]) -> None:
    """Refuse arms that can't be compared, or can't share an allocation. Raises `UsageError`."""
    if len(specs) < 2:
        raise UsageError(_ONE_ARM)
    for spec in specs:
        if spec.launch.workdir not in (None, OWN_FOLDER):
            raise UsageError(
                f"workdir={spec.launch.workdir}: each block of a comparison starts in a new folder, so that none goes "
                "on with another's files; leave workdir out, and name what the script reads in script.inputs=[...]"
            )
    if any(spec.recipe.name == "script" and spec.training.train.bare for spec in specs):
        raise UsageError(
            "train.bare=true: nothing counts the steps of a bare script, so it can't be measured in blocks of "
            "compare.steps steps; leave it out, or say run for compare"
        )
    if any(not spec.training.amp.claims for spec in specs):
        raise UsageError("amp=none: nothing counts the steps of such a script, so it can't be compared; say amp=o0")
    shared = [_shared(spec) for spec in specs]
    keys = dict.fromkeys(key for group in shared for key in group)
    for key in sorted(keys, key=lambda key: not key.endswith(".kind")):  # which decides what other keys there are
        values = list(dict.fromkeys(show(group.get(key)) for group in shared))
        if len(values) > 1:
            named, why = key.removesuffix(".name").removesuffix(".kind"), _SAME[key.partition(".")[0]]
            raise UsageError(f"{named} can't differ between the arms of a comparison ({' and '.join(values)}): {why}")


def _shared(spec: JobSpec) -> dict[str, Any]:
    """What arms have in common, by its key."""
    same = {key: plain(getattr(spec.training if key in TRAINING_KEYS else spec.launch, key)) for key in _SAME}
    return leaves(same)


def _in_own_folders(launch: Launch) -> Launch:
    """The same with the folder in which a script starts, which is each block's own."""
    if launch.workdir or launch.inputs or in_image(launch.script or ""):
        return launch
    note = user_script.empty_folder("each block")
    return dataclasses.replace(launch, workdir=OWN_FOLDER, notes=(*launch.notes, note))


SETTLED = ("steps", "epochs", "checkpoint.every", "checkpoint.keep", "checkpoint.stop_every")
"""Keys of an arm that the comparison sets, unless the arm is a script."""


def settled(spec: JobSpec, how: Compare) -> JobSpec:
    """The job as an arm: as long as the comparison says, saved and stopped after each block.

    Raises `UsageError` where no step of a block would be timed. A script's plan says how long a block is (`make`).
    """
    if spec.recipe.name == "script":
        return dataclasses.replace(spec, launch=_in_own_folders(spec.launch))
    at_once = spec.training.steps_per_execution
    if at_once > 1 and how.steps < LEAST * at_once:
        raise UsageError(
            f"compare.steps={how.steps}: with steps_per_execution={at_once} a block needs at least {LEAST * at_once} "
            "steps, as executions with warm-up or an observed step are not timed"
        )
    checkpoint = dataclasses.replace(spec.training.checkpoint, every=0, keep=1, stop_every=how.steps)
    training = dataclasses.replace(spec.training, steps=how.total, epochs=None, checkpoint=checkpoint)
    return dataclasses.replace(spec, training=training)


def make(plans: Sequence[Plan], how: Compare, name: str | None = None, published: Published | None = None) -> Plan:
    """One plan that measures these arms; the first is the control. Pure.

    Raises `UsageError` where their images would have to be fetched by several jobs.
    """
    if len({plan.container.pull if plan.container else "" for plan in plans}) > 1:
        lacking = dict.fromkeys(plan.container.asked for plan in plans if plan.container and plan.container.pull)
        fetch = [f"python -m launcher image pull {asked}" for asked in lacking]
        raise UsageError(
            "container.pull=true has a job fetch one image, and these arms have several: "
            f"first `{'` and `'.join(fetch)}`"
        )
    measured = tuple(
        dataclasses.replace(
            plan,
            arm=f"{number:02}",
            gpu_pool=(),
            setup=(),
            after=None,
            notify=(),
            tracker=None,
            restarts=0,
            command=(),
            script=plan.script and dataclasses.replace(plan.script, block=how.steps),
        )
        for number, plan in enumerate(plans)
    )
    control = plans[0]
    script = control.script
    if script and any(plan.script != script for plan in plans):
        script = dataclasses.replace(script, arguments=())  # each arm has its own, and none is the comparison's
    return dataclasses.replace(
        control,
        script=script,
        name=name or f"compare-{control.recipe}",
        words=tuple(f"({label(arm)})" for arm in measured),
        swept=(),
        telemetry=0,
        env={},
        comparison=how,
        published=published,
        arms=measured,
        advice=tuple(dict.fromkeys(line for plan in plans for line in plan.advice)),
    )


def label(arm: Plan | JobSpec) -> str:
    """The label of an arm: where it differs from the others."""
    return arms.label_of(arm.swept)
