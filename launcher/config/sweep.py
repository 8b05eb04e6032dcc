"""From overrides to the cells of a sweep: files are composed once for each choice, values set in plain dictionaries.

A sweep of a thousand cells that share their groups costs one composition. Where files have
interpolations, they are resolved in every cell, so that the result is what Hydra would have given.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from amp_launcher.typed import leaves, show
from launcher import waiting
from launcher.config import key_checks
from launcher.config.compose import Composed, Composer, merge, select, under
from launcher.config.parse import MOST_CELLS, Override, read_values
from launcher.config.schema import defaults
from launcher.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One point of a sweep, or the only one."""

    config: dict[str, Any]
    """The composed configuration as plain values."""
    words: tuple[Override, ...]
    """The overrides that made it, each with its one value."""
    composed: Composed
    """Its files, and where values stand in them."""
    swept: tuple[tuple[str, Any], ...] = ()
    """The keys that differ between cells, with this cell's values."""
    left_out: tuple[str, ...] = ()
    """Words of all cells that its level has no use for."""


def cells(composer: Composer, overrides: Sequence[Override]) -> list[Cell]:
    """The configurations that the overrides spell: one, or one for each combination of the swept values.

    Raises `UsageError` for an unknown key or choice.
    """
    script = any(override.key == "recipe" and override.values == ("script",) for override in overrides)
    for override in overrides:
        key_checks.refuse_unknown_key(composer, override, script=script)
    last = {(override.kind, override.key): override for override in overrides}  # as Hydra has it
    overrides = [override for override in overrides if override is last[override.kind, override.key]]
    swept_keys = [override.key for override in overrides if override.swept]
    if math.prod(len(override.values) for override in overrides) > MOST_CELLS:
        raise UsageError(
            f"a sweep over {', '.join(swept_keys)} has more than {MOST_CELLS:,} cells; start it in parts (command line)"
        )
    bases: dict[tuple[Any, ...], _Base] = {}
    made: dict[str, Cell] = {}
    numbers = list(itertools.product(*(range(len(override.values)) for override in overrides)))
    with waiting.counted(numbers, "reading cells: {} of {}") as combinations:
        for indices in combinations:
            choice = tuple(index for word, index in zip(overrides, indices, strict=True) if word.kind == "group")
            if choice not in bases:
                chosen = [word for word in _at(overrides, indices) if word.kind == "group"]
                bases[choice] = _Base(composer.compose(chosen), overrides)
            base = bases[choice]
            words = _at(base.overrides, indices)
            swept = tuple((word.key, word.values[0]) for word in words if word.key in swept_keys)
            cell = Cell(config=base.apply(words), words=words, swept=swept, composed=base.composed)
            if made.setdefault(repr(swept), cell) is not cell:
                what = ", ".join(f"{key}={value}" for key, value in swept)
                raise UsageError(f"the sweep over {', '.join(swept_keys)} has the cell {what} twice (command line)")
    return list(made.values())


def _at(overrides: Sequence[Override], indices: Sequence[int]) -> tuple[Override, ...]:
    """The overrides, each with the one of its values at that index."""
    return tuple(
        dataclasses.replace(override, values=(override.values[index],)) if override.swept else override
        for override, index in zip(overrides, indices, strict=True)
    )


def _sets(override: Override) -> bool:
    """Whether the override sets a value: it chooses no file and takes nothing back."""
    return override.kind == "value" and override.prefix != "~"


class _Base:
    """One choice of groups, composed; values are applied to a copy."""

    def __init__(self, composed: Composed, overrides: Sequence[Override]) -> None:
        """Raises `UsageError`, also for what a file leaves to the command line, by `???`, and nobody gave."""
        config = composed.config
        self.composed = composed
        self.overrides = read_values(overrides, str(select(config, "recipe")))
        """All of them, with their values as the keys of this choice's recipe have them."""
        for override in self.overrides:
            if override.kind == "value" and override.prefix == "~":
                _take_back(config, override)
        for key, value in leaves(config).items():
            if value == "???" and not any(within(key, override.key) for override in filter(_sets, self.overrides)):
                where = f" ({composed.places[key]})" if key in composed.places else ""
                raise UsageError(f"{key} is ??? in a configuration file: say {key}=...{where}")
        self._interpolated = [key for key, value in leaves(config).items() if "${" in str(value)]
        self._merged: Any = None
        """Of OmegaConf: what was composed over the defaults, as interpolations may read a key that no file has."""
        if self._interpolated:
            from omegaconf import OmegaConf

            self._merged = OmegaConf.merge(defaults(), config)

    def apply(self, words: Sequence[Override]) -> dict[str, Any]:
        """The configuration of one cell, whose overrides have one value each."""
        assignments = [override for override in words if _sets(override)]
        config = copy.deepcopy(self.composed.config)
        for override in assignments:
            merge(config, under(override.key, override.values[0]), missing=False)
        assigned = [key for override in assignments for key in leaves({override.key: override.values[0]})]
        remaining = [key for key in self._interpolated if not any(within(key, outer) for outer in assigned)]
        if remaining:
            self._resolve(config, remaining, assignments)
        return config

    def _resolve(self, config: dict[str, Any], keys: Sequence[str], assignments: Sequence[Override]) -> None:
        """Replace the interpolations of keys by their values in this cell. Raises `UsageError`."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        places = self.composed.places
        # Every cell sets the same keys, so that only a mapping could leave something of another cell behind.
        merges = any(isinstance(override.values[0], dict) for override in assignments)
        merged = copy.deepcopy(self._merged) if merges else self._merged
        try:
            for override in assignments:
                OmegaConf.update(merged, override.key, literal(override.values[0]), merge=True)
            for key in keys:
                value = OmegaConf.select(merged, key)
                resolved = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
                merge(config, under(key, resolved), missing=False)
        except OmegaConfBaseException as error:
            key = str(error.full_key or "")
            where = f" ({places[key]})" if key in places else ""
            raise UsageError(f"{key} can't be resolved: {str(error).splitlines()[0]}{where}") from None


def _take_back(config: dict[str, Any], override: Override) -> None:
    """Remove what files set for a key, if it is this value or the word names none. Raises `UsageError`."""
    key, value = override.key, override.values[0]
    node: Any = config
    *parents, name = key.split(".")
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if not isinstance(node, dict) or name not in node:
        raise UsageError(f"~{key} has nothing to take back: no file sets it ({override.source})")
    written = node[name]  # what an interpolation reads may be set later, or nowhere
    if value is not None and written != value:
        raise UsageError(f"~{key}={show(value)}: files set it to {show(written)} ({override.source})")
    del node[name]


def within(key: str, outer: str) -> bool:
    """Whether a key, or an item of a list, is another or in it."""
    return key == outer or key.startswith((f"{outer}.", f"{outer}["))


def literal(value: Any) -> Any:
    """The value with OmegaConf's interpolations escaped, so that nothing in it is evaluated."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, dict):
        return {name: literal(item) for name, item in value.items()}
    return [literal(item) for item in value] if isinstance(value, list) else value


def by_level(swept: Iterable[Cell]) -> list[Cell]:
    """The cells, those at o0 without the words that only the half precision of other cells has a use for."""
    return [without_half(cell) if {"amp", "amp.level"} & {key for key, _ in cell.swept} else cell for cell in swept]


def without_half(cell: Cell) -> Cell:
    """The cell without what only half precision has, where its level is o0 and the words are those of other levels."""
    amp = cell.config.get("amp")
    if not isinstance(amp, Mapping) or amp.get("level") != "o0":
        return cell
    swept = {key for key, _ in cell.swept}
    idle = {override.key for override in cell.words if _is_of_half(override)} - swept
    if not idle:
        return cell
    kept = {key: value for key, value in amp.items() if f"amp.{key}" not in idle}
    scale = {} if any(key.partition(".")[0] == "loss_scale" for key in idle) else cell.config.get("loss_scale", {})
    return dataclasses.replace(
        cell,
        config={**cell.config, "amp": kept, "loss_scale": scale},
        words=tuple(override for override in cell.words if override.key not in idle),
        left_out=tuple(override.typed for override in cell.words if override.key in idle),
    )


def _is_of_half(word: Override) -> bool:
    if word.key.partition(".")[0] == "loss_scale":
        return word.values[0] not in ("none", "auto")
    return word.key.startswith("amp.") and word.key != "amp.level" and word.values[0] != "auto"
