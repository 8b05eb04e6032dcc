"""Sweeps that learn: optuna proposes the values of each trial, and a trial is a run of one sweep.

space: words -> what is searched, and the words of one trial; pure
study: optuna's study, kept in the sweep's folder
trials: from a trial to its run, and from the run's rows and result to the study
job: what all trials have in common, and the plan of one
driver: asks for trials as others end, and shows them
command: a search from its words, or continued from its folder
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.config.schema import ALIASES

KEY = "search"
PREFIX = "search."


def is_asked(words: Iterable[str]) -> bool:
    """Whether a search is asked for."""
    return any(key_of(word) == KEY or key_of(word).startswith(PREFIX) for word in words)


def key_of(word: str) -> str:
    """The key of a word, by its own name."""
    key = word.partition("=")[0].lstrip("+").strip()
    return ALIASES.get(key, key)
