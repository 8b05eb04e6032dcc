"""The cells of a sweep at o0, without the words that only half precision has a use for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from launcher.config.parse import Override
from launcher.config.sweep import Cell


def by_level(swept: Iterable[Cell]) -> list[Cell]:
    """The cells, those at o0 without what was typed for the other levels of the sweep."""
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
