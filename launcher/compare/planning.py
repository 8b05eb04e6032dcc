"""The plan of a comparison, or of a published experiment, from its jobs; started or shown."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterator, Sequence

from launcher.compare import comparison, experiments
from launcher.compare.experiments import ExperimentRequest
from launcher.compare.last_words import last_words
from launcher.config import request
from launcher.config.request import Words
from launcher.config.spec import JobSpec
from launcher.errors import LauncherError, of_each
from launcher.executors.planning import say_advice
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
        request.print_configuration(asked.cells)
        return 0
    specs = asked.specs
    plan, facts = of_arms(specs, asked.how, arguments, asked=asked, make=not look)
    return carry_out(plan, facts, specs, look=look)


def of_arms(
    specs: Sequence[JobSpec],
    how: Compare,
    arguments: Sequence[str],
    *,
    asked: ExperimentRequest | None = None,
    facts: Facts | None = None,
    make: bool = True,
) -> tuple[Plan, Facts]:
    """The comparison of these jobs, and the host that it is planned for: that of `facts`, or what is found out now, by
    `probe` with `make`."""
    comparison.check_arms(specs)
    settled = [comparison.settled(spec, how) for spec in specs]
    hosts = [facts] * len(settled) if facts else probe_each(settled, make=make)
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
    say_advice([plan])
    return submit_and_follow([plan], facts, specs, last_words)


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


def describe_words(asked: ExperimentRequest, refusal: Exception, width: int = 0) -> Iterator[str]:
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
