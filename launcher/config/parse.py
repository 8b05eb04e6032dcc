"""Words of the command line as overrides: which key, which values, and whether it chooses a file of a group."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amp_launcher.recipe import find
from amp_launcher.typed import SettingsError, build, convert, fields_of, refuse_control_characters, unknown_key
from amp_launcher.values import CHOICE, from_text, read, split, unquoted
from launcher.config import placeholders
from launcher.config.paths import names_in
from launcher.config.schema import ALIASES, GROUPS, annotation_of, text_key
from launcher.errors import TYPED, UsageError, of_settings

_SHAPE = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=~+][^=]*?)(?:=(?P<text>.*))?", re.DOTALL)

_OF_SHELL = re.compile(r"\+{0,2}(?:env|secrets)\.[^.]+")
"""Words that need no value: the shell where they are typed has it."""

_RANGE = re.compile(r"range\((.*)\)")
_LARGEST = 10**15
"""Of range(): a step is exact."""

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
    """One value, or the values of a sweep: texts until `read_values`."""
    source: str = COMMAND_LINE
    """Where the word stands, for error messages."""

    @property
    def swept(self) -> bool:
        return len(self.values) > 1


def parse(word: str, groups: Sequence[str] = GROUPS, source: str = COMMAND_LINE) -> Override:
    """An override from a word such as `amp=o0,o1`, `+env.A=x` or `~data`. Raises `UsageError`.

    The text of a text key is taken as typed, or listed as choice(a,b); of any other key, commas and range() list
    values. `source` is where the word stands.
    """
    try:
        return dataclasses.replace(_parse(word, groups), source=source)
    except (UsageError, SettingsError) as error:
        raise UsageError(f"{error} ({source})") from None


def _parse(word: str, groups: Sequence[str]) -> Override:
    match = _SHAPE.fullmatch(word)
    if match is None or (match["text"] is None and match["prefix"] != "~" and not _OF_SHELL.fullmatch(word)):
        raise UsageError(half_of_pair(word, groups) or f"{word!r} is neither a verb nor key=value; see --help")
    prefix, key, text = match["prefix"] or "", match["key"].strip(), match["text"]
    key = ALIASES.get(key, key)
    if key.startswith("hydra.") or key == "hydra":
        raise UsageError(f"{key}: Hydra's own settings have no effect here; runs are configured by the keys in --help")
    refuse_control_characters(key, word)
    kind: Kind = "group" if key in groups else "value"
    make = functools.partial(Override, typed=word, prefix=prefix, key=key, kind=kind)
    if text is None:
        return make(values=(None,))
    texts = _listed(key, text, as_typed=kind == "value" and text_key(key))
    if prefix == "~" and len(texts) > 1:
        raise UsageError(f"{word} names several values; ~{key} takes back what files say of {key}")
    if kind == "group":
        return make(values=tuple(None if value == "null" or prefix == "~" else value for value in texts))
    return make(values=texts)


def half_of_pair(word: str, groups: Sequence[str] = GROUPS) -> str:
    """What to say of a word that is a key without its value, or the name of a choice without its key; empty for any
    other word."""
    if is_key(word, groups):
        return f"{word} is a key and needs a value: {word}=..."
    pairs = [f"{group}={word}" for group in groups if word in names_in(group)]
    return f"{word} needs its key: {' or '.join(pairs)}" if pairs else ""


def is_key(word: str, groups: Sequence[str] = GROUPS) -> bool:
    return word in groups or annotation_of(word) is not None


def _listed(key: str, text: str, *, as_typed: bool) -> tuple[str, ...]:
    """The texts of the values after `=`, several where they spell a sweep; those of a text key are taken `as_typed`.

    Raises `UsageError`."""
    placeholder = key.startswith(placeholders.KEY)
    if placeholder and not placeholders.NAME.fullmatch(key.removeprefix(placeholders.KEY)):
        raise UsageError(f"{key}: the name of a placeholder should be of letters, digits, - and _")
    choice = CHOICE.fullmatch(text)
    if choice is None and as_typed and not placeholder and (key != "image" or "," not in text):
        return (text,)
    if match := _RANGE.fullmatch(text):
        return _ranged(key, text, match[1])
    if text.startswith("interval("):
        raise UsageError(
            f"{key}={text}: an interval is searched, by `run` with search=optuna search.metric=NAME; say a value, or "
            "several as a,b"
        )
    if choice is None and not as_typed and (call := re.match(r"(\w+)\(", text)):
        raise UsageError(f"{key}={text}: {call[1]}() lists no values; say a,b or choice(a,b) or range(start,stop,step)")
    with of_settings(f"{key}={text}: "):
        parts, _ = split(choice[1] if choice else text)
    if not parts and (choice or placeholder):
        raise UsageError(f"{key}={text} lists no value; say one, or several as a,b")
    return tuple(unquoted(part) if as_typed else part for part in parts or [""])


def _ranged(key: str, text: str, inside: str) -> tuple[str, ...]:
    """The numbers of range(stop), range(start,stop) or range(start,stop,step); decimal steps add up exactly."""
    from decimal import Decimal, InvalidOperation  # takes a while, and few words need it

    try:
        numbers = [Decimal(part) for part in inside.split(",")]
    except InvalidOperation:
        numbers = []
    if not 1 <= len(numbers) <= 3 or not all(part.is_finite() and part.copy_abs() <= _LARGEST for part in numbers):
        raise UsageError(f"{key}={text} can't be read; say range(start,stop,step) in numbers up to {_LARGEST:,}")
    start, stop, step = [*([Decimal(0)] if len(numbers) == 1 else []), *numbers, Decimal(1)][:3]
    if float(step) == 0:  # as 1e-999999 is, once it is a value
        raise UsageError(f"{key}={text} has a step of 0; say range(start,stop,step) with another")
    count = min((stop - start) / step, Decimal(MOST_CELLS + 1))
    if count <= 0:
        raise UsageError(f"{key}={text} lists no value")
    kind = int if "." not in inside and all(number == int(number) for number in numbers) else float
    return tuple(str(kind(start + index * step)) for index in range(math.ceil(count)))


def own_settings(words: Sequence[str], prefix: str, cls: type) -> tuple[dict[str, Any], list[str]]:
    """The values of a verb's own settings, which are typed as `prefix` and a field of `cls`, and the other words.

    Raises `UsageError`."""
    values: dict[str, Any] = {}
    rest = []
    known = fields_of(cls)
    for word in words:
        key, _, text = word.lstrip("+").partition("=")
        if not key.startswith(prefix):
            rest.append(word)
            continue
        name = key.removeprefix(prefix)
        with of_settings(after=TYPED):
            if name not in known:
                raise SettingsError(unknown_key(key, [f"{prefix}{setting}" for setting in known]))
            values[name] = from_text(text, known[name], key)
            build(cls, {name: values[name]}, prefix=prefix)
    return values, rest


def read_values(overrides: Sequence[Override], recipe: str) -> list[Override]:
    """The overrides with their values read by the types of their keys, those of `train` as this recipe has them.

    Raises `UsageError` for a value of another type, and for a key that the recipe doesn't have.
    """
    train: type | None = None
    if any(_of_train(override) for override in overrides):
        with of_settings():
            train = find(recipe).settings
    read_by_type = []
    for override in overrides:
        annotation = train if override.key == "train" else annotation_of(override.key, train)
        if annotation is None and train is not None and _of_train(override):
            keys = [f"train.{name}" for name in fields_of(train)]
            raise UsageError(f"{unknown_key(override.key, keys)} ({override.source}; recipe {recipe})")
        if override.kind == "value" and override.prefix != PASSED and override.values != (None,):
            values = tuple(_read(override, text, annotation) for text in override.values)
            override = dataclasses.replace(override, values=values)
        read_by_type.append(override)
    return read_by_type


def _of_train(override: Override) -> bool:
    return override.key.partition(".")[0] == "train"


def _read(override: Override, text: str, annotation: Any) -> Any:
    try:
        value = read(text, annotation, override.key)
        convert(value, annotation, override.key)
    except SettingsError as error:
        interpolated = f"{override.key}={text}: interpolations are for configuration files; write the value"
        raise UsageError(f"{interpolated if '${' in text else error} ({override.source})") from None
    return value


def passed(arguments: Sequence[str]) -> Override:
    """The arguments of the user's script, which follow `--` on the command line, byte for byte."""
    with of_settings(after=TYPED):
        for argument in arguments:
            refuse_control_characters("an argument after --", argument)
    typed = f"-- {shlex.join(arguments)}"
    return Override(typed=typed, prefix=PASSED, key="arguments", kind="value", values=(list(arguments),))


def typed_words(override: Override) -> tuple[str, ...]:
    """The words of the command line that the override was."""
    return (PASSED, *override.values[0]) if override.prefix == PASSED else (override.typed,)
