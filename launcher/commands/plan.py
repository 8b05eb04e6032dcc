"""`plan`: what `run` would start, printed; from the same value, with nothing started and nothing written."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amp_launcher.typed import SettingsError, build, leaves, plain, show
from launcher import admit, compare
from launcher.config import request
from launcher.config.request import Words
from launcher.config.schema import SlurmCluster, defaults
from launcher.config.spec import JobSpec
from launcher.containers.words import Word, to_bash
from launcher.errors import LauncherError, UsageError, of_settings
from launcher.executors import planning
from launcher.plan import profilers, user_script
from launcher.plan.model import Plan, ScriptPlan
from launcher.plan.plan_summary import resources, summary
from launcher.plan.provenance import Origin, decided, origins
from launcher.plan.record import to_json
from launcher.plan.resolve import resolve_text
from launcher.probe.facts import Facts
from launcher.runs import address
from launcher.script import render, trainer_command
from launcher.ssh.probe_client import probe_each
from launcher.ui.tables import pairs, table, width_of, wrapped

if TYPE_CHECKING:
    from launcher.compare.experiments import ComparisonRequest

HELP = """\
Show what `run` would start, without starting it.

usage: python -m launcher plan [SCRIPT] [key=value ...] [--all] [--script] [--json] [--facts FILE] [--config-dir DIR]
                               [--cfg job] [-- ARGUMENTS OF THE SCRIPT]

  --all           every setting, defaults too
  --script        the whole run.sh
  --json          one JSON object: `facts`, and `plans` with one plan a cell
  --facts FILE    plan for the host described in FILE (the `facts` of an earlier --json) instead of looking at this one

Settings that are not the default are listed with what set them: a word of the command line, a configuration file, or
what was found on the host.
The run id is decided when the job is started; RUN_ID stands for it here.
"""


def main(arguments: Sequence[str]) -> int:
    words = request.split_flags(arguments, own=("json", "all", "script", "facts"), starts=True)
    if compare.is_experiment(words.overrides):
        from launcher.compare import experiments

        if (repeated := experiments.requested(words)) is not None:
            return _of_experiment(repeated, arguments, words)
    cells = request.compose(words)
    if words.cfg:
        request.print_configuration(cells)
        return 0
    specs = request.to_specs(cells)
    try:
        recorded = [recorded_facts(words.facts, specs)] * len(specs) if words.facts else None
        facts = recorded or probe_each(specs, make=False)
        plans = planning.resolve_each(specs, facts)
    except LauncherError as refusal:
        if words.json or words.facts or not all(map(user_script.is_text, specs)):
            raise
        where = origins(cells[0], specs[0], {"device": "cuda"}) if len(specs) == 1 else []
        print(describe_text(specs, where, refusal, width_of(sys.stdout), words.all), end="")
        return 0
    if not words.facts and address.of(specs[0].launch.cluster) is None:
        from launcher.executors import dependency

        dependency.check_after(plans)
    if words.json:
        print(_as_json(facts[0], plans))
        return 0
    where = origins(cells[0], specs[0], decided(plans[0]))
    text = describe(plans, where, width_of(sys.stdout), everything=words.all, with_script=words.script)
    print(_for_people(text, words))
    return 0


def _of_experiment(asked: ComparisonRequest, arguments: Sequence[str], words: Words) -> int:
    """The plan of a published table's arms."""
    from launcher.compare import comparison, planning

    if words.cfg:
        request.print_configuration(asked.cells)
        return 0
    facts = recorded_facts(words.facts, asked.specs) if words.facts else None
    width = width_of(sys.stdout)
    try:
        plan, known = planning.of_arms(asked, arguments, facts=facts, make=False)
    except LauncherError as refusal:
        if words.json or words.facts or words.script or asked.published is None:
            raise
        print(_for_people("\n".join(planning.describe_words(asked, refusal, width)), words))
        return 0
    if words.json:
        print(_as_json(known, [plan]))
        return 0
    if words.all:
        control = origins(asked.cells[0], asked.specs[0], decided(plan.arms[0]))
        if asked.specs[0].recipe.name != "script":
            control = [
                dataclasses.replace(origin, place="the comparison") if origin.key in comparison.SETTLED else origin
                for origin in control
            ]
        print("\n".join(["settings of the first arm:", *_settings(control, width, everything=True)]))
    print(_for_people("\n".join(planning.describe(plan, width, with_script=words.script)), words))
    return 0


def _for_people(text: str, words: Words) -> str:
    """The text without what a terminal acts on, which a value may hold; run.sh stays as it is outside a terminal."""
    return text if words.script and not sys.stdout.isatty() else admit.clean_lines(text)


def _as_json(facts: Facts, plans: Sequence[Plan]) -> str:
    return json.dumps({"schema": 1, "facts": plain(facts), "plans": [to_json(plan) for plan in plans]}, indent=1)


def recorded_facts(path: Path, specs: Sequence[JobSpec]) -> Facts:
    """Facts recorded by `plan --json`, or the object alone: what was asked about then. Raises `UsageError`, also where
    these jobs need more."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--facts {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--facts {path} holds no JSON: {error}") from None
    if isinstance(values, dict) and isinstance(values.get("facts"), dict):
        values = values["facts"]
    if not isinstance(values, dict):
        raise UsageError(f"--facts {path} holds no JSON object")
    with of_settings(f"--facts {path}: "):
        facts = build(Facts, values, prefix="facts.")
    if len({(spec.launch.image, spec.launch.container.kind) for spec in specs}) > 1:
        raise UsageError(f"--facts {path} is about one image, and these are several; leave --facts out")
    for spec in specs:
        if isinstance(spec.launch.cluster, SlurmCluster) and facts.slurm is None:
            raise UsageError(f"--facts {path} holds nothing about Slurm; record them with the same words")
        if spec.launch.container.kind != "none" and facts.containers is None:
            raise UsageError(f"--facts {path} holds nothing about containers; record them with the same words")
    return facts


def describe(
    plans: Sequence[Plan],
    where: Sequence[Origin],
    width: int = 0,
    *,
    everything: bool = False,
    with_script: bool = False,
) -> str:
    """The plan in words: summary, cells of a sweep, settings with their origins, where it goes and the command; its
    tables in at most `width` columns (0: no limit).

    `everything` lists settings that have their default too, `with_script` adds run.sh.
    """
    first = plans[0]
    lines = [summary(first) if len(plans) == 1 else f"a sweep of {len(plans)} runs, the first: {summary(first)}", ""]
    if len(plans) > 1:
        keys = [key for key, _ in first.swept]
        rows = [[str(index), *(show(value) for _, value in plan.swept)] for index, plan in enumerate(plans)]
        lines += [*table(["cell", *keys], rows), ""]
    if first.script and first.script.bare:
        level = first.settings["amp"]["level"]
        typed = _typed(first.script, first.run_dir, first.mechanism, level, trainer_command.command(first))
        lines += [*typed, ""]
    lines += [*_settings(where, width, everything), *pairs(_place(first), width), ""]
    notes = list(dict.fromkeys(line for plan in plans for line in plan.advice))
    if first.passed:
        notes.append(f"passed on from this shell: {', '.join(first.passed)}")
    if first.left_behind and everything:
        notes.append(f"not passed on from this shell: {', '.join(first.left_behind)}")
    lines += [part for note in notes for part in wrapped(f"note: {note}", width)]
    if with_script:
        lines += [f"--- {first.run_dir}/run.sh", render.render(first)]
    more = [] if everything else ["`plan --all` lists every setting"]
    more += [] if with_script else ["`plan --script` prints run.sh"]
    return "\n".join([*lines, *([", ".join(more)] if more else [])])


def is_chosen(origin: Origin, default: Mapping[str, Any]) -> bool:
    """Whether a setting was typed, or differs from its default; `default` has each key's."""
    if origin.place.startswith(("command line", "sweep")):
        return True
    if origin.key in ("notes", "arguments"):  # which are printed as such
        return False
    return origin.place != "default" and origin.value != default.get(origin.key)


def _place(plan: Plan) -> list[tuple[str, str]]:
    """Where a job goes, what it asks for there, and its command."""
    rows = [("folder", plan.run_dir)]
    if plan.script is not None:
        rows.append(("starts in", user_script.start_folder(plan)))
    if asked := resources(plan):
        rows.append((plan.cluster["kind"], asked))
    if plan.container is not None:
        rows.append(("container", f"{plan.container.runtime.kind}: {plan.container.asked}"))
    if plan.arms or (plan.script and plan.script.bare):
        return rows
    return [*rows, ("command", " ".join(to_bash(word) for word in trainer_command.command(plan)))]


def describe_text(
    specs: Sequence[JobSpec], where: Sequence[Origin], refusal: Exception, width: int = 0, everything: bool = False
) -> str:
    """What a user of bare scripts would type in their images, where `run` refuses them on this host. Raises the refusal
    where the words themselves can't be."""
    lines, notes = [], [f"`run` refuses {'it' if len(specs) == 1 else 'them'} here: {refusal}"]
    for spec in specs:
        try:
            planned, precision = resolve_text(spec)
        except SettingsError:
            raise refusal from None
        profiler = profilers.prefix(plain(spec.training), "", bare=True)
        typed = (*profiler, spec.launch.python or "python", planned.file, *planned.arguments)
        lines += [*_typed(planned, "", precision.mechanism, spec.training.amp.level, typed), ""]
        notes += [*user_script.advice(spec, None, 1, precision), *spec.launch.notes]
    lines += _settings(where, width, everything)
    lines += [part for note in dict.fromkeys(notes) for part in wrapped(f"note: {note}", width)]
    return "\n".join(lines) + "\n"


def _settings(where: Sequence[Origin], width: int, everything: bool) -> list[str]:
    default = leaves(defaults())
    shown = [origin for origin in where if everything or is_chosen(origin, default)]
    rows = [[origin.key, show(origin.value), origin.place] for origin in shown]
    return [*table(["setting", "value", "from"], rows, width=width, spare=["from"]), ""] if rows else []


def _typed(script: ScriptPlan, run_dir: str, mechanism: str, level: str, words: Sequence[Word]) -> list[str]:
    """What a bare script's user would type where it starts."""
    exported = user_script.environment(mechanism, level)
    typed = shlex.join(str(word) for word in words)
    where = f"in {'the image, ' if script.in_image else ''}{script.folder(run_dir)}:"
    return [where, *(f"  export {name}={value}" for name, value in exported.items()), f"  {typed}"]
