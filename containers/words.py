"""Words of a command of which some get their text only when the job starts.

A plan is made before the scheduler has chosen nodes and devices. What only the node knows stands in an environment
variable then, so a word is either text or text around such a variable.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Late:
    """One word: the value of an environment variable as it is when the job starts, with text around it."""

    variable: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Each:
    """A word for every item of a comma-separated environment variable, with text before each.

    The items hold letters, digits and dashes only, and `before` nothing that a shell reads.
    """

    variable: str
    before: str = ""


Word = str | Late | Each


def prefixed(text: str, word: str | Late) -> str | Late:
    """The word with text in front, as the value of a flag."""
    return text + word if isinstance(word, str) else replace(word, before=text + word.before)


def to_bash(word: Word) -> str:
    """The word as a bash script spells it: exactly its text, nothing of it evaluated."""
    if isinstance(word, str):
        return shlex.quote(word)
    if isinstance(word, Late):
        before, after = (shlex.quote(text) if text else "" for text in (word.before, word.after))
        return f'{before}"${word.variable}"{after}'
    # Unquoted on purpose: it becomes several words.
    return f"{word.before}${{{word.variable}//,/ {word.before}}}"


def fill(words: Iterable[Word], environment: Mapping[str, str]) -> list[str]:
    """The words as a process gets them. Raises `KeyError` for a variable that is not set."""
    filled: list[str] = []
    for word in words:
        if isinstance(word, str):
            filled.append(word)
        elif isinstance(word, Late):
            filled.append(f"{word.before}{environment[word.variable]}{word.after}")
        else:
            filled += [f"{word.before}{item}" for item in environment[word.variable].split(",")]
    return filled
