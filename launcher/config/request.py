"""The words after `run` or `plan`: flags and overrides, and the jobs that they request."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amp_launcher.around.script import in_image
from amp_launcher.precision.levels import NO_CLAIM
from amp_launcher.precision.support import KERAS_BACKEND
from amp_launcher.settings import Settings
from launcher import waiting
from launcher.config import job_environment, script_text, script_word, slurm_flags
from launcher.config.compose import Composer
from launcher.config.parse import COMMAND_LINE, PASSED, is_key, parse, passed
from launcher.config.paths import add_own_recipes, expanded, own_folders
from launcher.config.spec import JobSpec, make
from launcher.config.sweep import Cell, by_level, cells
from launcher.errors import UsageError, of_each
from launcher.runs import address as addresses
from launcher.runs.arms import label_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """The command line, split into flags and overrides, not parsed yet."""

    overrides: tuple[str, ...] = ()
    arguments: tuple[str, ...] | None = None
    """The words after `--`; None where there was none."""
    config_dirs: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where words stand that are not of the command line."""
    cfg: bool = False
    help: bool = False
    json: bool = False
    all: bool = False
    script: bool = False
    plan: bool = False
    facts: Path | None = None
    ssh_config: bool = False
    sshd: bool = False


def split_flags(words: Sequence[str], own: Sequence[str] = (), *, starts: bool = False) -> Words:
    """Flags from overrides. `own` names the flags of the verb beyond those that all have; `starts` is for verbs that
    take a script as their first word. Raises `UsageError`."""
    rest = list(words)
    overrides: list[str] = []
    folders: list[Path] = []
    flags: dict[str, Any] = {}
    """Fields of `Words`."""
    arguments: tuple[str, ...] | None = None

    def value(flag: str, inline: str) -> str:
        if inline:
            return inline
        if not rest:
            raise UsageError(f"{flag} needs a value")
        return rest.pop(0)

    while rest:
        word = rest.pop(0)
        if word == PASSED:
            arguments, rest = tuple(rest), []
            continue
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flag, _, inline = word.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(expanded(value(flag, inline)))
        elif flag in ("--cfg", "-c") and starts:
            what = value(flag, inline)
            if what != "job":
                raise UsageError(f"--cfg {what}: only `--cfg job` is supported")
            flags["cfg"] = True
        elif flag in ("-m", "--multirun"):
            pass  # comma lists sweep anyway
        elif flag in ("-h", "--help"):
            flags["help"] = True
        elif flag == "--facts" and "facts" in own:
            flags["facts"] = expanded(value(flag, inline))
        elif flag.removeprefix("--") in own and not inline:
            flags[flag.removeprefix("--").replace("-", "_")] = True
        else:
            shared = ("config-dir", *(["cfg"] if starts else []), "multirun", "help")
            flags_here = [f"--{name}" for name in (*shared, *own)]
            hint = _instead(flag.lstrip("-"), inline, overrides)
            raise UsageError(f"{flag} is not a flag here (flags: {', '.join(flags_here)}){hint}")
    config_dirs = (*folders, *own_folders())
    for folder in config_dirs:
        add_own_recipes(folder)
    return Words(
        overrides=script_word.spelled_out(overrides) if starts else tuple(overrides),
        arguments=arguments,
        config_dirs=config_dirs,
        **flags,
    )


def _instead(name: str, value: str, overrides: Sequence[str]) -> str:
    """A hint for an unknown flag; empty where none is known."""
    key = f"cluster.{slurm_flags.NAMED[name]}" if name in slurm_flags.NAMED else name
    hint = ""
    if is_key(key):
        hint = f"; a key has no dashes: {key}={value or '...'}"
    elif name.replace("-", "") == "dryrun":
        hint = "; `plan` shows what would be started"
    if "recipe=script" in overrides or (overrides and script_word.is_script(overrides[0])):
        hint += "; arguments of the script go after --"
    return hint


def compose(words: Words) -> tuple[Cell, ...]:
    """The composed configurations: one, or the cells of a sweep. Raises `UsageError`."""
    composer = Composer(config_dirs=words.config_dirs)
    groups = composer.groups()
    overrides = tuple(parse(word, groups, words.sources.get(word, COMMAND_LINE)) for word in words.overrides)
    if words.arguments is not None:
        overrides = (*overrides, passed(words.arguments))
    read = functools.cache(script_text.frameworks)  # once for all cells
    return tuple(_with_framework(cell, read) for cell in by_level(cells(composer, overrides)))


def _with_framework(cell: Cell, read: Callable[[Path, str], dict[str, str]]) -> Cell:
    """The cell; a script without `framework=` gets the one that it imports, which `read` finds.

    Raises `UsageError` for a script that imports several.
    """
    path = _script(cell.config)
    if path is None or cell.config.get("framework"):
        return cell
    packages = read(path, _keras_backend(cell.config))
    if cell.config["amp"].get("preset") == NO_CLAIM and len(packages) != 1:
        return dataclasses.replace(cell, config={**cell.config, "framework": "none"})
    if len(packages) > 1:
        choices = " or ".join(f"framework={name}" for name in sorted(packages))
        raise UsageError(
            f"{path.name} uses {' and '.join(sorted(packages.values()))}; say which of them trains: {choices}"
        )
    if not packages:
        return cell  # the one that is installed where it runs
    (framework,) = packages
    if framework == Settings().framework:
        return dataclasses.replace(cell, config={**cell.config, "framework": framework})
    note = f"framework={framework}, as {path.name} imports {packages[framework]}"
    word = parse(f"framework={framework}", source=f"imports of {path.name}")
    notes = [*(cell.config.get("notes") or ()), note]
    return dataclasses.replace(
        cell, config={**cell.config, "framework": framework, "notes": notes}, words=(*cell.words, word)
    )


def _keras_backend(config: Mapping[str, Any]) -> str:
    """Keras's backend by the variable that the job will have; empty where that isn't known here."""
    env = config.get("env") or {}
    if named := env.get(KERAS_BACKEND):
        return str(named)
    contained = config["container"]["kind"] != "none"
    passed = job_environment.passed_on(env, [KERAS_BACKEND], config.get("env_from") == "shell")
    known = job_environment.inherits_shell("script", config["cluster"]["kind"], contained) or KERAS_BACKEND in passed
    return os.environ.get(KERAS_BACKEND, "") if known else ""


def _script(config: Mapping[str, Any]) -> Path | None:
    """The script of a job to which the launcher applies a mode; None where it is not on this machine."""
    script, train = config.get("script"), config.get("train")
    bare = isinstance(train, Mapping) and train.get("bare") is True
    if config.get("recipe") != "script" or bare or not isinstance(script, str) or in_image(script):
        return None
    path = expanded(script)
    return path.resolve() if os.path.isfile(path) else None


def to_specs(composed: Sequence[Cell], what: str = "cell") -> tuple[JobSpec, ...]:
    """The typed jobs. An error in some of several names these, as a `what` each. Raises `UsageError`."""
    with waiting.counted(composed, f"checking {what}s: {{}} of {{}}") as each:
        specs = of_each(((label_of(cell.swept), cell) for cell in each), make, what)
    key = differing_place(specs) or ("after" if len({spec.launch.after for spec in specs}) > 1 else "")
    if key and what == "cell":  # for arms there are stricter rules, `comparison.check_arms`
        raise UsageError(f"{key} can't be swept: the cells of a sweep are submitted together; start one for each")
    return tuple(specs)


def to_spec(words: Words, does: str) -> JobSpec:
    """The job of these words, for a verb that `does` something with one. Raises `UsageError` for a sweep."""
    spec, *others = to_specs(compose(words))
    if others:
        raise UsageError(f"{does}, and these words are a sweep of {1 + len(others)}; name one value each")
    return spec


def differing_place(specs: Sequence[JobSpec]) -> str:
    """The first key that sends the jobs to several places; empty for none."""
    for key, values in (
        ("cluster", {spec.launch.cluster.kind for spec in specs}),
        ("where a cluster is", {addresses.of(spec.launch.cluster) for spec in specs}),
        ("run_root", {spec.launch.run_root for spec in specs}),
        ("share", {spec.launch.share for spec in specs}),
    ):
        if len(values) > 1:
            return key
    return ""


def print_configuration(cells: Sequence[Cell]) -> None:
    """What `--cfg job` shows: the composed configuration of every cell, as YAML."""
    import yaml

    for index, cell in enumerate(cells):
        if len(cells) > 1:
            point = " ".join(f"{key}={value}" for key, value in cell.swept)
            print(f"# cell {index}: {point}")
        print(yaml.safe_dump(cell.config, sort_keys=False, allow_unicode=True), end="")
