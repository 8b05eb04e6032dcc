"""The plan of a comparison, or of a published experiment, from its jobs; started or shown."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Sequence

from launcher.compare import comparison, experiments
from launcher.compare.experiments import ComparisonRequest
from launcher.compare.last_words import last_words
from launcher.config import request
from launcher.config.request import Words
from launcher.errors import LauncherError
from launcher.executors.planning import say_advice
from launcher.plan import user_script
from launcher.plan.model import Compare, Plan
from launcher.plan.resolve import resolve
from launcher.probe.facts import Facts
from launcher.ssh.probe_client import probe_each
from launcher.ui import tables
from launcher.ui.foreground import submit_and_follow


def carry_out(asked: ComparisonRequest, arguments: Sequence[str], words: Words, *, plan_only: bool = False) -> int:
    """Start the comparison; or show its configuration, or its plan alone, by `plan_only`."""
    if words.cfg:
        request.print_configuration(asked.cells)
        return 0
    plan, facts = of_arms(asked, arguments, make=not plan_only)
    if plan_only:
        print("\n".join(describe(plan, tables.width_of(sys.stdout), with_script=True)))
        return 0
    say_advice([plan])
    return submit_and_follow([plan], facts, asked.specs, last_words)


def of_arms(
    asked: ComparisonRequest, arguments: Sequence[str], *, facts: Facts | None = None, make: bool = True
) -> tuple[Plan, Facts]:
    """The comparison, and the host that it is planned for: that of `facts`, or what is found out now, by `probe` with
    `make`."""
    specs, how = asked.specs, asked.how
    comparison.check_arms(specs)
    settled = [comparison.settled(spec, how) for spec in specs]
    hosts = [facts] * len(settled) if facts else probe_each(settled, make=make)
    labelled = [(comparison.label(spec), (spec, host)) for spec, host in zip(settled, hosts, strict=True)]
    try:
        made, refused = experiments.possible(
            labelled, lambda arm: resolve(*arm), at_least=2 if asked.name else len(specs)
        )
    except LauncherError as error:
        if asked.smaller and not hosts[0].gpus and hosts[0].slurm is None:
            raise type(error)(f"{error}; {_smaller(asked)}") from None
        raise
    script = user_script.stem(specs[0].launch)
    name = specs[0].launch.name or asked.name or (f"compare-{script}" if script else None)
    plan = comparison.make(list(made.values()), how, name, experiments.only(asked.published, made, refused))
    left_out = tuple(f"{name} is left out: {why}" for name, why in (*asked.impossible, *refused))
    advice = (*left_out, *plan.advice)
    if asked.smaller and any(arm.settings["device"] == "cpu" for arm in plan.arms):
        advice = (f"its full size is for a GPU, and here a CPU has it; {_smaller(asked)}", *advice)
    return dataclasses.replace(plan, command=tuple(arguments), advice=advice), hosts[0]


def _smaller(asked: ComparisonRequest) -> str:
    return f"experiment={asked.name} {' or '.join(asked.smaller)} is its form for a machine without GPU"


def describe(plan: Plan, width: int = 0, *, with_script: bool = False) -> list[str]:
    """The plan of a comparison in words: its arms and its blocks, its sentences in at most `width` columns (0: no
    limit). `with_script` adds run.sh, and that of the first arm."""
    from launcher.plan.plan_summary import summary
    from launcher.script import render

    how = plan.comparison
    assert how is not None
    rows = [(arm.arm, comparison.label(arm), summary(arm)) for arm in plan.arms]
    lines = [_measured_how(how, len(plan.arms)), ""]
    lines += [*tables.table(["arm", "differs in", "is"], rows), ""]
    if starts := [f"arm {arm.arm} starts in {user_script.start_folder(arm)}" for arm in plan.arms if arm.script]:
        lines += [*starts, ""]
    if plan.published:
        from launcher.compare import published  # and all that reports need

        labels = [comparison.label(arm) for arm in plan.arms]
        lines += [*_typed([arm.words for arm in plan.arms]), "", *published.shown(plan.published, labels, width), ""]
    lines += [part for note in plan.advice for part in tables.wrapped(f"note: {note}", width)]
    if not with_script:
        return [*lines, "`plan --script` prints run.sh"]
    for shown in (plan, plan.arms[0]):
        lines += [f"--- {shown.run_dir}/run.sh", render.render(shown)]
    return lines


def describe_words(asked: ComparisonRequest, refusal: Exception, width: int = 0) -> Iterator[str]:
    """An experiment where `run` refuses it: what its words say, in at most `width` columns (0: no limit)."""
    specs = asked.specs
    yield from (_measured_how(asked.how, len(specs)), "")
    labels = [comparison.label(spec) for spec in specs]
    rows = [[f"{number:02}", label] for number, label in enumerate(labels)]
    yield from (*tables.table(["arm", "is"], rows), "")
    yield from (*_typed([spec.words for spec in specs]), "")
    if asked.published:
        from launcher.compare import published

        yield from (*published.shown(asked.published, labels, width), "")
    yield from tables.wrapped(f"note: `run` refuses it here: {refusal}", width)


def _measured_how(how: Compare, count: int) -> str:
    rounds = f"{how.rounds} round{'s' * (how.rounds > 1)}"
    blocks = f"{rounds} of {count} blocks, {how.steps} steps each, {how.cool_down} s apart"
    return f"a comparison of {count} arms: {blocks}; {how.total:,} steps of each arm in all"


def _typed(words: Sequence[Sequence[str]]) -> list[str]:
    """The words behind the names of an experiment's arms."""
    shared = [word for word in words[0] if all(word in others for others in words)]
    own = [shlex.join(word for word in of_arm if word not in shared) for of_arm in words]
    lines = [f"all arms: {shlex.join(shared)}"] if shared else []
    return lines + [f"arm {number:02}: {line}" for number, line in enumerate(own)]
