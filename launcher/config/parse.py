"""Words of the command line as overrides: which key, which values, and whether it chooses a file of a group."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from launcher.config import placeholders
from launcher.config.schema import ALIASES, GROUPS, annotation_of, text_key, text_list_key
from launcher.errors import UsageError
from recipes.typed import SettingsError, refuse_control_characters, show, split_list

_SHAPE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=~+][^=]*?)(?:=(?P<text>.*))?", re.DOTALL)

_OF_SHELL = re.compile(r"\+{0,2}(?:env|secrets)\.[^.]+")
"""Words that need no value: it is that of the shell where they are typed."""

Kind = Literal["group", "value"]

PASSED = "--"
"""What stands before arguments that are passed on, and in the place of an override's prefix."""


MOST_CELLS = 10_000
"""Cells of one sweep. More is a typing mistake, and would fill memory before any limit of a cluster is checked."""


COMMAND_LINE = "command line"


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """One word of the command line, or of an experiment."""

    typed: str
    """The word as it was typed."""
    prefix: str
    """`+`, `++`, `~`, `--` or nothing."""
    key: str
    kind: Kind
    """Whether it chooses a file of a configuration group or sets a value."""
    values: tuple[Any, ...]
    """One value, or the values of a sweep."""
    source: str = COMMAND_LINE
    """Where the word stands, for error messages."""

    @property
    def swept(self) -> bool:
        return len(self.values) > 1


def parse(word: str, groups: Sequence[str] = GROUPS, source: str = COMMAND_LINE) -> Override:
    """An override from a word such as `amp=o0,o1`, `+env.A=x` or `~data`. Raises `UsageError`.

    The text of a text key is taken as typed, or as choice(a,b), and so are the items of a list of texts; everything
    else is read by Hydra's override grammar. `source` is where the word stands.
    """
    try:
        return dataclasses.replace(_parse(word, groups), source=source)
    except UsageError as error:
        raise UsageError(f"{error} ({source})") from None


def _parse(word: str, groups: Sequence[str]) -> Override:
    match = _SHAPE.fullmatch(word)
    if match is None or (match["text"] is None and match["prefix"] != "~" and not _OF_SHELL.fullmatch(word)):
        raise UsageError(_no_override(word, groups))
    prefix, key, text = match["prefix"] or "", match["key"].strip(), match["text"]
    key = ALIASES.get(key, key)
    if key.startswith("hydra.") or key == "hydra":
        raise UsageError(f"{key}: Hydra's own settings have no effect here; runs are configured by the keys in --help")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{key} contains bytes that are not UTF-8 text") from None
    try:
        refuse_control_characters(key, word)
    except SettingsError as error:
        raise UsageError(str(error)) from None
    kind: Kind = "group" if key in groups else "value"
    if text is None:
        return Override(typed=word, prefix=prefix, key=key, kind=kind, values=(None,))
    if prefix == "~":
        if len(_grammar(key, text)) > 1:
            raise UsageError(f"{word} names several values; ~{key} takes back what files say of {key}")
        return Override(typed=word, prefix=prefix, key=key, kind=kind, values=(None,))
    if key.startswith(placeholders.KEY):
        return Override(typed=word, prefix=prefix, key=key, kind=kind, values=_of_placeholder(key, text))
    if kind == "value" and text_key(key):
        return Override(typed=word, prefix=prefix, key=key, kind=kind, values=_texts(key, text))
    if kind == "value" and text_list_key(key) and (lists := _lists(key, text)):
        return Override(typed=word, prefix=prefix, key=key, kind=kind, values=lists)
    return Override(typed=word, prefix=prefix, key=key, kind=kind, values=_grammar(key, text))


def _no_override(word: str, groups: Sequence[str]) -> str:
    if is_key(word, groups):
        return f"{word} is a key and needs a value: {word}=..."
    return f"{word!r} is neither a verb nor key=value; see --help"


def is_key(word: str, groups: Sequence[str] = GROUPS) -> bool:
    return word in groups or annotation_of(word) is not None


def _texts(key: str, text: str) -> tuple[str, ...]:
    """The text as it was typed. Several texts are spelled choice(a,b), where one with a comma stands in double quotes;
    images, whose names have no comma, are listed as other values are. Raises `UsageError`."""
    choice = re.fullmatch(r"choice\((.*)\)", text, re.DOTALL)
    if choice is None and (key != "image" or "," not in text):
        return (text,)
    row = next(csv.reader([choice[1] if choice else text], skipinitialspace=True), [])
    values = tuple(item.strip() for item in row)
    if not values or not all(values):
        raise UsageError(f"{key}={text} lists an empty text")
    return values


def _of_placeholder(key: str, text: str) -> tuple[str, ...]:
    """The values of a placeholder, as texts: a comma-separated list or a range. A value that contains a comma is quoted
    or in brackets. Raises `UsageError`."""
    name = key.removeprefix(placeholders.KEY)
    if not placeholders.NAME.fullmatch(name):
        raise UsageError(f"{key}: the name of a placeholder should be of letters, digits, - and _")
    if re.fullmatch(r"range\(.*\)", text):
        return tuple(show(value) for value in _grammar(key, text))
    choice = re.fullmatch(r"choice\((.*)\)", text, re.DOTALL)
    try:
        items, rest = split_list(f"[{choice[1] if choice else text}]")
    except SettingsError as error:
        raise UsageError(f"{key}={text}: {error}") from None
    if rest or not items:
        why = "quote a value with an odd bracket, as 'a]b'" if rest else "say one value, or several as a,b"
        raise UsageError(f"{key}={text} can't be read; {why}")
    return tuple(items)


def _lists(key: str, text: str) -> tuple[list[str], ...]:
    """The lists that [a,b] or, for a sweep, [a],[b] spell; none where the text begins with no list."""
    choice = re.fullmatch(r"choice\((.*)\)", text, re.DOTALL)
    rest = (choice[1] if choice else text).strip()
    lists = []
    while rest.startswith("["):
        try:
            items, rest = split_list(rest)
        except SettingsError as error:
            raise UsageError(f"{key}={text}: {error}") from None
        lists.append(items)
        if not rest:
            return tuple(lists)
        comma, rest = rest[0], rest[1:].strip()
        if comma != "," or not rest.startswith("["):
            raise UsageError(f"{key}={text}: only a comma and another list, in a sweep, may follow a list")
    return ()


def _grammar(key: str, text: str) -> tuple[Any, ...]:
    """The values that Hydra's grammar reads from the text after `=`; several where it spells a sweep.

    A text that the grammar has no place for stays a text, which whoever knows the key's choices or type refuses.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Glob, RangeSweep
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"{key}={text}")
        value = parsed.value()
    except ValueError as error:  # more digits than Python reads
        raise UsageError(f"{key}: {str(error).partition(';')[0]}") from None
    except HydraException:
        if text[:1] in ("[", "{"):
            raise UsageError(
                f"{key}={text} can't be read; quote what has odd characters, as {key}='[\"a b\"]'"
            ) from None
        if re.fullmatch(r"\w+\(.*", text, re.DOTALL):
            raise UsageError(
                f"{key}={text} can't be read; a sweep is a,b or choice(a,b) or range(start,stop,step)"
            ) from None
        return (text,)
    if isinstance(value, Glob):
        raise UsageError(f"{key}={text}: glob sweeps are not supported; list the values, as {key}=a,b")
    if not parsed.is_sweep_override():
        return (value,)
    if parsed.is_interval_sweep():
        raise UsageError(f"{key}={text}: an interval has no values to list; say {key}=range(start,stop,step)")
    if isinstance(value, RangeSweep) and value.step == 0:
        raise UsageError(f"{key}={text} has a step of 0; say range(start,stop,step) with another")
    listed = parsed.sweep_iterator(transformer=lambda value: parsed._convert_value(value))
    values = tuple(itertools.islice(listed, MOST_CELLS + 1))
    if not values:
        raise UsageError(f"{key}={text} lists no value")
    return values


def choosing_word(override: Override, value: Any) -> str:
    """A word that chooses a file or takes a value back, as Hydra spells it, with one of its values. Empty for a group
    of which no file is chosen."""
    if override.kind == "group" and value is None:
        return ""
    if override.prefix == "~":
        return override.typed
    return f"{'+' if override.prefix == '+' else ''}{override.key}={value}"


def passed(arguments: Sequence[str]) -> Override:
    """The arguments of the user's script, which follow `--` on the command line, byte for byte."""
    for argument in arguments:
        try:
            argument.encode()
            refuse_control_characters("an argument after --", argument)
        except UnicodeEncodeError:
            raise UsageError("an argument after -- contains bytes that are not UTF-8 text (command line)") from None
        except SettingsError as error:
            raise UsageError(f"{error} (command line)") from None
    typed = f"-- {shlex.join(arguments)}"
    return Override(typed=typed, prefix=PASSED, key="arguments", kind="value", values=(list(arguments),))


def typed_words(override: Override) -> tuple[str, ...]:
    """The words of the command line that the override was."""
    return (PASSED, *override.values[0]) if override.prefix == PASSED else (override.typed,)


def escaped(override: Override, value: Any) -> Any:
    """The value of an override for OmegaConf: text that is taken as typed is not interpolated."""
    if is_typed(override) and isinstance(value, (str, list)):
        return literal(value) if isinstance(value, str) else [literal(item) for item in value]
    return value


def is_typed(override: Override) -> bool:
    """Whether the override's values are text that is taken as typed, or lists of such."""
    return override.kind == "value" and (text_key(override.key) or text_list_key(override.key))


def literal(text: str) -> str:
    """The text with OmegaConf's interpolations escaped, so that nothing in it is evaluated."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", text)
