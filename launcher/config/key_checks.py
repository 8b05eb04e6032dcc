"""Refuses unknown keys and choices, and names what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from amp_launcher.recipe import NAMES, find, own_names
from amp_launcher.typed import SettingsError, fields_of, nearest, not_a_choice, show
from launcher.config.compose import Composer
from launcher.config.parse import Override
from launcher.config.schema import REQUIRED_GROUPS, annotation_of, known_keys
from launcher.errors import UsageError

_LEVEL_OF = {
    **dict.fromkeys(("bf16", "bfloat16"), "amp=bf16-mixed, or amp=bf16-true"),
    **dict.fromkeys(("fp16", "float16", "half", "16"), "amp=fp16-mixed, or amp=fp16-true"),
    "16-mixed": "amp=fp16-mixed",
    "16-true": "amp=fp16-true",
    **dict.fromkeys(("32", "32-true", "fp32-true"), "amp=fp32"),
    **dict.fromkeys(("on", "true", "mixed"), "amp=o1"),
    **dict.fromkeys(("off", "false", "float32"), "amp=o0"),
}
_KEY_OF = {
    "cluster.user": "cluster.host=me@host, or cluster.login=me@host with cluster=slurm",
    "cluster.port": "cluster.host=me@host:port, or cluster.login=me@host:port with cluster=slurm",
    "cluster.gpus": "gpus=",
    "cluster.nodes": "nodes=",
    "cluster.image": "image=",
    "cluster.gres": "gpus=, or cluster.flags=['--gres=...'] for what is no GPU",
    **dict.fromkeys(("precision", "mixed_precision"), "amp=bf16-mixed, or another mode of amp"),
}


def _meant(group: str, value: str) -> str:
    """The refusal of a value that means something else, such as a dtype as level; empty where none is known."""
    if group == "amp" and value.lower() in _LEVEL_OF:
        return f"amp={value} is not a mode; say {_LEVEL_OF[value.lower()]}"
    if group == "loss_scale" and re.fullmatch(r"\d+(\.\d*)?", value):
        return f"loss_scale={value} is not a rule; say loss_scale=static loss_scale.init={value}"
    if group == "recipe" and value in NAMES:
        return f"recipe={value} has no file conf/recipe/{value}.yaml; `make conf` writes it"
    if group == "recipe" and value in own_names():
        return f"recipe={value} has no file recipe/{value}.yaml beside recipes/; write one: `recipe: {value}`"
    return ""


def refuse_unknown_key(composer: Composer, override: Override, *, script: bool) -> None:
    """Refuse an override whose key or choice is unknown. `script` is whether the job is a user's script. Raises
    `UsageError`."""
    if override.kind == "group":
        choices = composer.choices(override.key)
        for value in override.values:
            if value in choices or (value is None and override.key not in REQUIRED_GROUPS):
                continue
            if override.prefix == "~":
                one_of = f"say one of {', '.join(choices)}"
                raise UsageError(f"{override.typed}: {override.key} can't be left out; {one_of} ({override.source})")
            meant = _meant(override.key, show(value))
            raise UsageError(f"{meant or not_a_choice(override.key, show(value), choices)} ({override.source})")
        return
    if override.key == "train" or (override.key.startswith("train.") and override.key.count(".") == 1):
        return  # the recipe is known only once its files are composed
    if annotation_of(override.key) is None:
        if override.key.partition(".")[0] == "search":
            raise UsageError(f"{override.typed}: `run` searches, and no other verb does ({override.source})")
        if override.key in _KEY_OF:
            raise UsageError(f"{override.key} is not a key; say {_KEY_OF[override.key]} ({override.source})")
        if script and "." not in override.key:
            argument = f"--{override.key} {' '.join(show(value) for value in override.values)}"
            near = meant_key(override.key, sorted(known_keys()), ())  # what is merely close is the script's own
            hint = f"{near or ';'} arguments of the script go after --: -- {argument}"
            raise UsageError(f"{override.key} is not a key of the launcher{hint} ({override.source})")
        train = {key for name in composer.choices("recipe") for key in _train_keys(name)}
        near = meant_key(override.key, sorted({*known_keys(), *train}), [*known_keys(), *composer.groups()])
        raise UsageError(
            f"unknown key {override.key}{near or ';'} `python -m launcher run --help` lists all ({override.source})"
        )


def meant_key(key: str, dotted: Iterable[str], known: Iterable[str]) -> str:
    """`; did you mean x?` for the keys of groups that end in an unknown key, else for the closest of those that are
    known."""
    grouped = [other for other in dotted if other.endswith(f".{key}")]
    return f"; did you mean {' or '.join(grouped)}?" if grouped else nearest(key, known)


def _train_keys(recipe: str) -> list[str]:
    try:
        return [f"train.{name}" for name in fields_of(find(recipe).settings)]
    except SettingsError:  # a user's file of that group may choose a recipe by another name
        return []
