"""`compare`: arms of one job, measured in turn on the same devices; then what they differ in."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from launcher import arms, comparison, experiments, request
from launcher.comparison import Compare, Published
from launcher.errors import of_each
from launcher.facts import Facts
from launcher.plan import Plan, resolve
from launcher.probe import probe_each
from launcher.spec import JobSpec
from launcher.verbs.run import experiment, hand_over, leave, stay, stays

HELP = """\
Measure a job in several modes against each other, and say what each gains and costs.

usage: python -m launcher compare KEY=A,B[,C] [key=value ...] [compare.rounds=5] [compare.steps=50]

The first of the listed values is the control, to which the others are held. Arms begin with the same weights, see the
same data in the same order, and run the same code, one block after another on the same devices: A B C, C B A, A B C ...
They may differ in anything but recipe, seed and data: amp=o0,o1,o2, batch=128,256, xla=false,true, compile=, tf32=,
image=; texts that may hold commas are listed as env.NCCL_ALGO=choice(Ring,Tree).
From five rounds on, ratios of throughput have an interval. An arm that runs out of memory is a row of the table.
`report` says it again later, `--plan` shows the script and starts nothing.

keys, beside those of `run --help`:
{keys}
"""


def main(arguments: Sequence[str]) -> int:
    words = request.take_apart([each for each in arguments if each != "--plan"])
    if words.help:
        print(HELP.format(keys="\n".join(_keys())), end="")
        return 0
    if (repeated := experiments.asked_for(words.overrides, words.config_dirs)) is not None:
        return experiment(repeated, arguments, look="--plan" in arguments)
    how, rest = comparison.take_apart(words.overrides)
    words = dataclasses.replace(words, overrides=tuple(rest))
    asked = request.compose(words)
    if words.cfg:
        request.print_configuration(asked)
        return 0
    comparison.check_words(asked.overrides)
    comparison.check_listed(asked.overrides)
    specs = request.understand(asked, "arm")
    return carry_out(specs, how, ["compare", *arguments], look="--plan" in arguments)


def carry_out(
    specs: Sequence[JobSpec],
    how: Compare,
    arguments: Sequence[str],
    *,
    name: str | None = None,
    published: Published | None = None,
    look: bool = False,
) -> int:
    """Plan the comparison of these jobs, and start it, or `look` at its plan alone."""
    comparison.check(specs)
    settled = [comparison.settled(spec, how) for spec in specs]
    facts = probe_each(settled)
    plans = _resolved(settled, facts)
    whole = comparison.make(plans, how, specs[0].launch.name or name, published)
    whole = dataclasses.replace(whole, command=tuple(arguments))
    if look:
        print("\n".join(describe(whole)))
        return 0
    for line in whole.advice:
        print(f"note: {line}", file=sys.stderr)
    folders = hand_over([whole], facts[0], specs)
    return stay(folders) if stays(specs[0].launch) else leave(folders)


def _resolved(specs: Sequence[JobSpec], facts: Sequence[Facts]) -> list[Plan]:
    """The plan of each arm. Raises `LauncherError`, which names the arms that can't be where others can."""
    labelled = [(arms.label_of(spec.swept), (spec, each)) for spec, each in zip(specs, facts, strict=True)]
    return of_each(labelled, lambda asked: resolve(*asked), "arm")


def describe(whole: Plan) -> list[str]:
    """The plan of a comparison in words: its arms, its blocks, and the scripts."""
    from launcher import script
    from launcher.tables import table
    from launcher.verbs.plan import summary

    how = whole.comparison
    assert how is not None
    rows = [(arm.arm, comparison.label(arm), summary(arm)) for arm in whole.arms]
    rounds = f"{how.rounds} round{'s' * (how.rounds > 1)}"
    blocks = f"{rounds} of {len(whole.arms)} blocks, {how.steps} steps each"
    lines = [f"a comparison of {len(whole.arms)} arms: {blocks}, {how.cool_down} s apart", ""]
    lines += [*table(["arm", "differs in", "is"], rows), ""]
    lines += [f"note: {each}" for each in whole.advice]
    lines += [f"--- {whole.run_dir}/run.sh", script.render(whole)]
    control = whole.arms[0]
    return [*lines, f"--- {control.run_dir}/run.sh", script.render(control)]


def _keys() -> list[str]:
    return [
        f"  {comparison.PREFIX}{field.name:20} {field.metadata['help']} [{field.default}]"
        for field in dataclasses.fields(Compare)
    ]
