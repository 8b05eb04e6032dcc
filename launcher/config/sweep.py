"""Overrides to configurations: each choice of groups is composed once, values are applied to plain dictionaries.

A sweep of a thousand cells that share their groups costs one composition. A swept key that an interpolation refers to
falls back to composing every cell, so that the result is what Hydra would have given.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.compose import Composer, Place
from launcher.config.parse import MOST_CELLS, Override, choosing_word, escaped, is_typed
from launcher.config.schema import REQUIRED_GROUPS, annotation_of, defaults, known_keys, leaves
from launcher.errors import UsageError
from recipes.recipe import find
from recipes.typed import SettingsError, fields_of, nearest, not_a_choice, show, unknown_key

_INTERPOLATION = re.compile(r"\$\{([^{}]*)\}?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One point of a sweep, or the only one."""

    config: dict[str, Any]
    """The composed configuration as plain values."""
    words: tuple[Override, ...]
    """The overrides that made it, each with its one value."""
    swept: tuple[tuple[str, Any], ...] = ()
    """The keys that differ between cells, with this cell's values."""
    chosen: tuple[str, ...] = ()
    """The words that chose its files, as Hydra takes them."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Where its values stand in people's own files, by dotted key."""
    left_out: tuple[str, ...] = ()
    """Words of all cells that its level has no use for."""


def cells(composer: Composer, overrides: Sequence[Override]) -> list[Cell]:
    """The configurations that the overrides spell: one, or one for each combination of the swept values.

    Raises `UsageError` for an unknown key or choice.
    """
    script = any(each.key == "recipe" and each.values == ("script",) for each in overrides)
    for override in overrides:
        _check(composer, override, script=script)
    overrides = _last_wins(overrides)
    choosing = [each for each in overrides if each.kind == "group" or each.prefix == "~"]
    setting = [each for each in overrides if not (each.kind == "group" or each.prefix == "~")]
    swept_keys = [each.key for each in overrides if each.swept]
    if math.prod(len(each.values) for each in overrides) > MOST_CELLS:
        raise UsageError(
            f"a sweep over {', '.join(swept_keys)} has more than {MOST_CELLS:,} cells; start it in parts (command line)"
        )
    bases: dict[tuple[Any, ...], _Base] = {}
    found = []
    for combination in itertools.product(*(each.values for each in overrides)):
        value_of = {id(override): value for override, value in zip(overrides, combination, strict=True)}
        choice = tuple(value_of[id(each)] for each in choosing)
        if choice not in bases:
            spelled = (choosing_word(each, value) for each, value in zip(choosing, choice, strict=True))
            words = tuple(each for each in spelled if each)
            bases[choice] = _Base.make(composer.compose(words), setting, words, composer.places(words))
        config = bases[choice].apply([(each, value_of[id(each)]) for each in setting])
        found.append(
            Cell(
                config=config,
                words=tuple(_single(each, value_of[id(each)]) for each in overrides),
                swept=tuple((each.key, value_of[id(each)]) for each in overrides if each.swept),
                chosen=bases[choice].words,
                places=bases[choice].places,
            )
        )
    if len(found) > 1:
        _refuse_twins(found, swept_keys)
    return found


def by_level(found: Iterable[Cell]) -> list[Cell]:
    """The cells, those at o0 without what was typed for the other levels of the sweep."""
    return [without_half(each) if {"amp", "amp.level"} & {key for key, _ in each.swept} else each for each in found]


def without_half(cell: Cell) -> Cell:
    """The cell without what only half precision has, where its level is o0 and the words are those of other levels."""
    amp = cell.config.get("amp")
    if not isinstance(amp, Mapping) or amp.get("level") != "o0":
        return cell
    swept = {key for key, _ in cell.swept}
    idle = {each.key for each in cell.words if _is_of_half(each)} - swept
    if not idle:
        return cell
    kept = {key: value for key, value in amp.items() if f"amp.{key}" not in idle}
    scale = {} if any(key.partition(".")[0] == "loss_scale" for key in idle) else cell.config.get("loss_scale", {})
    return dataclasses.replace(
        cell,
        config={**cell.config, "amp": kept, "loss_scale": scale},
        words=tuple(each for each in cell.words if each.key not in idle),
        left_out=tuple(each.typed for each in cell.words if each.key in idle),
    )


def _is_of_half(word: Override) -> bool:
    if word.key.partition(".")[0] == "loss_scale":
        return word.values[0] not in ("none", "auto")
    return word.key.startswith("amp.") and word.key != "amp.level" and word.values[0] != "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Base:
    """One choice of groups, composed; values are applied to a copy."""

    composed: Any
    plain: dict[str, Any] | None
    """Resolved, with the values that no sweep changes; None where an interpolation refers to a swept key."""
    fixed: frozenset[str]
    words: tuple[str, ...]
    """Those that chose its files."""
    places: Mapping[str, Place]

    @staticmethod
    def make(composed: Any, setting: Sequence[Override], words: tuple[str, ...], places: Mapping[str, Place]) -> _Base:
        from omegaconf import OmegaConf

        raw = OmegaConf.to_container(composed, resolve=False)
        _refuse_missing(raw, setting, places)
        fixed = [(each, each.values[0]) for each in setting if not each.swept]
        texts = [*_texts(raw), *_texts([value for each in setting for value in each.values])]
        swept = [each.key for each in setting if each.swept]
        if any(_refers(text, key) for text in texts for key in swept):
            return _Base(composed=composed, plain=None, fixed=frozenset(), words=words, places=places)
        keys = frozenset(each.key for each, _ in fixed)
        return _Base(
            composed=composed, plain=_resolved(composed, fixed, places), fixed=keys, words=words, places=places
        )

    def apply(self, assignments: Sequence[tuple[Override, Any]]) -> dict[str, Any]:
        if self.plain is None:
            return _resolved(self.composed, assignments, self.places)
        config = copy.deepcopy(self.plain)
        for override, value in assignments:
            if override.key not in self.fixed:
                _assign(config, override.key, value)
        return config


def _refuse_missing(raw: Any, setting: Sequence[Override], places: Mapping[str, Place]) -> None:
    """Refuse what a file leaves to the command line, by `???`, and nobody gave. Raises `UsageError`."""
    for key, value in leaves(raw):
        if value == "???" and not any(_covers(each.key, key) for each in setting):
            where = f" ({places[key]})" if key in places else ""
            raise UsageError(f"{key} is ??? in a configuration file: say {key}=...{where}")


def _covers(outer: str, key: str) -> bool:
    return key == outer or key.startswith(f"{outer}.")


def _resolved(
    composed: Any, assignments: Sequence[tuple[Override, Any]], places: Mapping[str, Place]
) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = copy.deepcopy(composed)
    try:
        for override, value in assignments:
            OmegaConf.update(config, override.key, escaped(override, value), merge=True)
    except OmegaConfBaseException as error:
        raise UsageError(f"the configuration can't be composed: {str(error).splitlines()[0]}") from None
    resolved = resolve(config, places)
    for index, (override, value) in enumerate(assignments):
        if is_typed(override) and not any(_covers(each.key, override.key) for each, _ in assignments[index + 1 :]):
            _assign(resolved, override.key, value)  # byte for byte, `???` too, which OmegaConf takes for none
    return resolved


def resolve(config: Any, places: Mapping[str, Place]) -> dict[str, Any]:
    """The composed configuration as plain values. An interpolation may read a key that only the code has a default for.

    Raises `UsageError` for an interpolation that can't be resolved.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    if not any(_texts(raw)):
        return {str(name): value for name, value in raw.items()}
    try:
        whole = OmegaConf.to_container(OmegaConf.merge(defaults(), config), resolve=True)
    except OmegaConfBaseException as error:
        key = str(error.full_key or "")
        where = f" ({places[key]})" if key in places else ""
        raise UsageError(f"{key} can't be resolved: {str(error).splitlines()[0]}{where}") from None
    assert isinstance(whole, dict)
    return _restricted(whole, raw)


def _restricted(whole: Mapping[Any, Any], shape: Mapping[Any, Any]) -> dict[str, Any]:
    """The part of a tree that has the keys of another."""
    return {
        str(name): _restricted(whole[name], inner) if isinstance(inner, dict) else whole[name]
        for name, inner in shape.items()
    }


def _assign(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key the way OmegaConf's update with merge does: mappings merge, everything else replaces."""
    *parents, name = key.split(".")
    node = config
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            node[parent] = {}
        node = node[parent]
    if isinstance(value, dict) and isinstance(node.get(name), dict):
        for inner, each in value.items():
            _assign(node[name], str(inner), each)
    else:
        node[name] = copy.deepcopy(value)


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        if "${" in tree:
            yield tree
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from _texts(each)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _texts(each)


def _refers(text: str, key: str) -> bool:
    """Whether an interpolation in the text may read the key. Only plain absolute ones are told apart."""
    for inside in _INTERPOLATION.findall(text):
        if inside.startswith("oc.env:"):
            continue
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", inside):
            return True
        if inside == key or inside.startswith(f"{key}.") or key.startswith(f"{inside}."):
            return True
    return False


_LEVEL_OF = {
    **dict.fromkeys(("bf16", "bfloat16"), "amp=o1 amp.dtype=bfloat16"),
    **dict.fromkeys(("fp16", "float16", "half"), "amp=o1 amp.dtype=float16"),
    **dict.fromkeys(("on", "true", "mixed"), "amp=o1"),
    **dict.fromkeys(("off", "false", "none", "fp32", "float32"), "amp=o0"),
}
_KEY_OF = {
    "cluster.user": "cluster.host=me@host, or cluster.login=me@host with cluster=slurm",
    "cluster.port": "cluster.host=me@host:port, or cluster.login=me@host:port with cluster=slurm",
    "cluster.gpus": "gpus=",
    "cluster.nodes": "nodes=",
    "cluster.image": "image=",
}


def _instead_of(group: str, value: str) -> str:
    """What to say for a value that a group has no file for, where that can be told; empty elsewhere."""
    if group == "amp" and value.lower() in _LEVEL_OF:
        more = ", or another level" if "dtype" in _LEVEL_OF[value.lower()] else ""
        return f"amp={value} is no level; say {_LEVEL_OF[value.lower()]}{more}"
    if group == "loss_scale" and re.fullmatch(r"\d+(\.\d*)?", value):
        return f"loss_scale={value} is no rule; say loss_scale=static loss_scale.init={value}"
    return ""


def _check(composer: Composer, override: Override, *, script: bool) -> None:
    if override.kind == "group":
        choices = composer.choices(override.key)
        for value in override.values:
            if isinstance(value, str) and value in choices:
                continue
            if value is None and override.key not in REQUIRED_GROUPS:
                continue
            if override.prefix == "~":
                said = f"{override.typed}: {override.key} can't be left out; say one of {', '.join(choices)}"
                raise UsageError(f"{said} ({override.source})")
            instead = _instead_of(override.key, show(value))
            raise UsageError(f"{instead or not_a_choice(override.key, show(value), choices)} ({override.source})")
        return
    if override.key.startswith("train.") and override.key.count(".") == 1:
        return  # the recipe knows its own keys; it is asked once it is known
    if annotation_of(override.key) is None and not any(key.startswith(f"{override.key}.") for key in known_keys()):
        if override.key in _KEY_OF:
            raise UsageError(f"{override.key} is no key; say {_KEY_OF[override.key]} ({override.source})")
        if script and "." not in override.key:
            told = f"--{override.key} {' '.join(show(value) for value in override.values)}"
            said = f"{override.key} is no key of the launcher; what the script is to be told goes behind --: -- {told}"
            raise UsageError(f"{said} ({override.source})")
        whole = [key for key in _keys_of(composer) if key.endswith(f".{override.key}")]
        known = [*known_keys(), *composer.groups()]
        near = f"; did you mean {' or '.join(whole)}?" if whole else nearest(override.key, known)
        raise UsageError(
            f"unknown key {override.key}{near} ({override.source}). `python -m launcher run --help` lists them"
        )


def _keys_of(composer: Composer) -> list[str]:
    """Every key there is, those of all recipes included."""
    train = {key for name in composer.choices("recipe") for key in _train_keys(name)}
    return sorted({*known_keys(), *train})


def _train_keys(recipe: str) -> list[str]:
    try:
        return [f"train.{name}" for name in fields_of(find(recipe).settings)]
    except SettingsError:  # a user's file of that group may choose a recipe by another name
        return []


def check_train_keys(recipe: str, overrides: Iterable[Override]) -> None:
    """Refuse `train.` keys that the recipe doesn't have. Raises `UsageError`."""
    try:
        settings = find(recipe).settings
    except SettingsError as error:
        raise UsageError(str(error)) from None
    for override in overrides:
        if override.key.startswith("train.") and annotation_of(override.key, settings) is None:
            keys = [key for key in known_keys(settings) if key.startswith("train.")]
            raise UsageError(f"{unknown_key(override.key, keys)} ({override.source}; recipe {recipe})")


def _last_wins(overrides: Sequence[Override]) -> list[Override]:
    """Of several words for one key, the last, as Hydra has it."""
    by_key = {(each.kind, each.key): each for each in overrides}
    return [each for each in overrides if by_key[each.kind, each.key] is each]


def _single(override: Override, value: Any) -> Override:
    if not override.swept:
        return override
    return dataclasses.replace(override, values=(value,))


def _refuse_twins(found: Sequence[Cell], swept: Sequence[str]) -> None:
    seen: dict[str, None] = {}
    for cell in found:
        point = repr(cell.swept)
        if point in seen:
            what = ", ".join(f"{key}={value}" for key, value in cell.swept)
            raise UsageError(f"the sweep over {', '.join(swept)} has the cell {what} twice (command line)")
        seen[point] = None
