"""Of many runs: those whose steps are read, and those whose curves are coloured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.runs.schema import ResultRecord

READ = 100
"""Runs whose steps are read at most."""
ALWAYS = 24
"""Of them those that are read however long they are."""
BYTES = 64 << 20
"""Of metrics and telemetry that are read beyond that, which takes about a second."""
DISTINCT = 16
"""Curves that can be distinguished: 8 colours, plain or dashed."""
COLOURED = 8
"""Curves in colour where there are more than that; the others are grey."""


def best_first(results: Sequence[ResultRecord]) -> tuple[list[int], str]:
    """Indices of the runs, and by what they are ordered: held-out accuracy, else the last loss; empty where no run has
    either. Runs without it come last."""
    accuracies = [result.eval.get("accuracy") for result in results]
    losses = [result.loss.last for result in results]
    by = "held-out accuracy" if any(accuracy is not None for accuracy in accuracies) else "last loss"
    keys = [None if accuracy is None else -accuracy for accuracy in accuracies] if by == "held-out accuracy" else losses
    order = sorted(range(len(results)), key=lambda index: (keys[index] is None, keys[index] or 0.0))
    return order, by if any(key is not None for key in keys) else ""


def to_read(order: Sequence[int], folders: Sequence[Path]) -> set[int]:
    """The runs whose steps are read, the first of the order before others."""
    reading: set[int] = set()
    left = BYTES
    for index in order[:READ]:
        left -= _size(folders[index])
        if len(reading) >= ALWAYS and left < 0:
            break
        reading.add(index)
    return reading


def colours(order: Sequence[int]) -> list[int | None]:
    """The colour of each run, by its place in the order that is kept; None for grey ones."""
    if len(order) <= DISTINCT:
        return list(range(len(order)))
    shown = {index: number for number, index in enumerate(sorted(order[:COLOURED]))}
    return [shown.get(index) for index in range(len(order))]


def _size(folder: Path) -> int:
    """Bytes of what a run measured."""
    return _bytes(folder / "metrics.jsonl") + sum(_bytes(path) for path in (folder / "telemetry").glob("*.csv"))


def _bytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
