"""Comparisons: what is measured, schedule of blocks, paired statistics, verdict, and all of it as a document."""

from __future__ import annotations

from collections.abc import Iterable

EXPERIMENT = "experiment="
SCALE = "scale="


def is_experiment(words: Iterable[str]) -> bool:
    """Whether words name an experiment, or the scale of one."""
    return any(word.startswith((EXPERIMENT, SCALE)) for word in words)
