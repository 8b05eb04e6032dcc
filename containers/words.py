"""Arguments of a command: text, or the value of an environment variable when the job starts.

A plan is made before the scheduler has chosen nodes and devices; environment variables name them on the node.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EnvArg:
    """One argument: the value of an environment variable when the job starts, with text around it."""

    variable: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class EnvArgs:
    """An argument for every item of a comma-separated environment variable, with text before it.

    Items are letters, digits and dashes only, and `before` has nothing that a shell interprets.
    """

    variable: str
    before: str = ""


Word = str | EnvArg | EnvArgs


def prefixed(text: str, word: str | EnvArg) -> str | EnvArg:
    """The argument with text in front, as the value of a flag."""
    return text + word if isinstance(word, str) else replace(word, before=text + word.before)


def to_bash(word: Word) -> str:
    """The argument quoted for bash: exactly its text, nothing evaluated."""
    if isinstance(word, str):
        return shlex.quote(word)
    if isinstance(word, EnvArg):
        before, after = (shlex.quote(text) if text else "" for text in (word.before, word.after))
        return f'{before}"${word.variable}"{after}'
    # Unquoted on purpose: it becomes several arguments.
    return f"{word.before}${{{word.variable}//,/ {word.before}}}"
