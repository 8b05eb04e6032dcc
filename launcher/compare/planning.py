"""The plan of a comparison, or of a published experiment, from its jobs; started or shown."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence

from launcher.compare import comparison, experiments
from launcher.compare.ended import last_words
from launcher.compare.experiments import ExperimentRequest
from launcher.config import request
from launcher.config.request import Words
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, of_each
from launcher.plan import user_script
from launcher.plan.model import Compare, Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.ssh.probe_client import probe_each
from launcher.ui import tables
from launcher.ui.foreground import submit_and_follow


def of_experiment(asked: ExperimentRequest, arguments: Sequence[str], words: Words, *, look: bool = False) -> int:
    """A published table, measured here; or its plan or its configuration alone."""
    if words.cfg:
        request.print_configuration(asked.request)
        return 0
    specs = asked.request.specs
    plan, facts = of_arms(specs, asked.how, arguments, asked=asked, starting=not look)
    return carry_out(plan, facts, specs, look=look)


def of_arms(
    specs: Sequence[JobSpec],
    how: Compare,
    arguments: Sequence[str],
    *,
    asked: ExperimentRequest | None = None,
    facts: Facts | None = None,
    starting: bool = False,
) -> tuple[Plan, Facts]:
    """The comparison of these jobs, and the host that it is planned for: that of `facts`, or what is found out now."""
    comparison.check(specs)
    settled = [comparison.settled(spec, how) for spec in specs]
    hosts = [facts] * len(settled) if facts else probe_each(settled, starting=starting)
    impossible = asked.impossible if asked else ()
    published = asked.published if asked else None
    labelled = [(comparison.label(spec), (spec, host)) for spec, host in zip(settled, hosts, strict=True)]
    try:
        if asked:
            made, refused = experiments.possible(labelled, lambda arm: resolve(*arm))
            plans, impossible = list(made.values()), (*impossible, *refused)
            published = experiments.only(published, made, refused)
        else:
            plans = of_each(labelled, lambda arm: resolve(*arm), "arm")
    except LauncherError as error:
        if asked and asked.smaller and not hosts[0].gpus and hosts[0].slurm is None:
            raise type(error)(f"{error}; {_smaller(asked)}") from None
        raise
    script = user_script.stem(specs[0].launch)
    name = specs[0].launch.name or (asked.name if asked else None) or (f"compare-{script}" if script else None)
    plan = comparison.make(plans, how, name, published)
    left_out = tuple(f"{name} is left out: {why}" for name, why in impossible)
    advice = (*left_out, *plan.advice)
    if asked and asked.smaller and any(arm.settings["device"] == "cpu" for arm in plan.arms):
        advice = (f"its full size is for a GPU, and here a CPU has it; {_smaller(asked)}", *advice)
    return dataclasses.replace(plan, command=tuple(arguments), advice=advice), hosts[0]


def _smaller(asked: ExperimentRequest) -> str:
    return f"experiment={asked.name} {' or '.join(asked.smaller)} is its form for a machine without GPU"


def carry_out(plan: Plan, facts: Facts, specs: Sequence[JobSpec], *, look: bool) -> int:
    """Start the comparison, or `look` at its plan alone."""
    if look:
        print("\n".join(describe(plan, tables.width_of(sys.stdout), with_script=True)))
        return 0
    for line in plan.advice:
        print(f"note: {line}", file=sys.stderr)
    return submit_and_follow([plan], facts, specs, last_words)


def describe(plan: Plan, width: int = 0, *, with_script: bool = False) -> list[str]:
    """The plan of a comparison in words: its arms and its blocks, its sentences in at most `width` columns (0: no
    limit). `with_script` adds run.sh, and that of the first arm."""
    from launcher.plan.plan_summary import summary
    from launcher.script import render

    how = plan.comparison
    assert how is not None
    rounds = f"{how.rounds} round{'s' * (how.rounds > 1)}"
    blocks = f"{rounds} of {len(plan.arms)} blocks, {how.steps} steps each, {how.cool_down} s apart"
    rows = [(arm.arm, comparison.label(arm), summary(arm)) for arm in plan.arms]
    lines = [f"a comparison of {len(plan.arms)} arms: {blocks}; {how.total:,} steps of each arm in all", ""]
    lines += [*tables.table(["arm", "differs in", "is"], rows), ""]
    if starts := [f"arm {arm.arm} starts in {user_script.start_folder(arm)}" for arm in plan.arms if arm.script]:
        lines += [*starts, ""]
    if plan.published:
        from launcher.compare import published  # and all that reports need

        lines += [*_typed(plan), "", *published.planned(plan, width), ""]
    lines += [part for note in plan.advice for part in tables.wrapped(f"note: {note}", width)]
    if not with_script:
        return [*lines, "`plan --script` prints run.sh"]
    for shown in (plan, plan.arms[0]):
        lines += [f"--- {shown.run_dir}/run.sh", render.render(shown)]
    return lines


def _typed(plan: Plan) -> list[str]:
    """The words behind the names of an experiment's arms."""
    shared = [word for word in plan.arms[0].words if all(word in arm.words for arm in plan.arms)]
    lines = [f"all arms: {shlex.join(shared)}"] if shared else []
    return lines + [
        f"arm {arm.arm}: {shlex.join(word for word in arm.words if word not in shared)}" for arm in plan.arms
    ]
