"""Configuration files that people write: read within bounds, mistakes reported with file and line.

A file is read twice: as YAML's nodes, which have their lines and share what aliases repeat, so that a file is known to
be small before it is read as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from launcher.errors import UsageError

MOST_BYTES = 256 * 1024
DEEPEST = 50
"""Mappings and lists within each other."""
MOST_VALUES = 10_000
"""With every alias written out."""
_TOO_DEEP = f"lists and mappings are nested more than {DEEPEST} deep, or within themselves"
_NO_KEYS = "a configuration file holds keys with values, as `batch: 256`"

_MERGE = "tag:yaml.org,2002:merge"
"""Of the key `<<`. Source: https://yaml.org/type/merge.html."""

_PACKAGE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_HEADER = re.compile(r"#\s*@(.*)")


class SourceLine(NamedTuple):
    """Where a value stands in a person's own file."""

    file: Path
    line: int
    """From 1."""
    text: str
    """What is written there; empty for a list or mapping."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_SHIPPED: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Takes a tenth of the time. Of floats it knows those with a point alone, as `conf/` has them."""


def refused(path: Path, line: int | None, what: str) -> UsageError:
    return UsageError(f"{path}{f':{line}' if line else ''}: {what}")


def read(path: Path, *, shipped: bool = False) -> dict[str, Any]:
    """The mapping that a file holds, `${...}` and all; empty for an empty file. A `shipped` file is believed. Raises
    `UsageError`."""
    text = _text(path)
    if shipped:
        return yaml.load(text, Loader=_SHIPPED) or {}
    from omegaconf import OmegaConf  # which takes a while, and reads what people wrote
    from omegaconf.errors import OmegaConfBaseException

    places = _scan(path, text)
    if places.keys() == {""} and places[""].text not in ("", "~", "null", "Null", "NULL"):
        raise refused(path, places[""].line, _NO_KEYS)  # OmegaConf only asserts that a file is no number
    try:
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    except OmegaConfBaseException as error:  # a `${...}` without end
        place = places.get(str(error.full_key))
        raise refused(path, place and place.line, str(error).splitlines()[0]) from None
    except (ValueError, OverflowError, TypeError) as error:  # a number of 5,000 digits, a key that can't be one
        raise refused(path, None, str(error)) from None
    if isinstance(values, list) or (values and places.keys() == {""}):
        raise refused(path, places[""].line, _NO_KEYS)
    assert isinstance(values, dict)
    _check_keys(path, values)
    for name in map(str, values):
        group, dot, key = name.partition(".")
        if dot:
            raise refused(path, places[name].line, f"{name} is a key of a group: write `{group}: {{{key}: ...}}`")
    return values  # type: ignore[return-value]  # whose keys are checked to be text


def places(path: Path) -> dict[str, SourceLine]:
    """Where the values of a file stand, by dotted key, of an item of a list as `flags[0]`. Raises `UsageError`."""
    return _scan(path, _text(path))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise refused(path, None, str(error.strerror)) from None
    if len(data) > MOST_BYTES:
        raise refused(path, None, f"more than {MOST_BYTES // 1024} KiB, which no configuration file needs")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refused(path, line, "not UTF-8, which configuration files are written in") from None


def _scan(path: Path, text: str) -> dict[str, SourceLine]:
    """The places of all values. Raises `UsageError` for more of them, or deeper ones, than a configuration has."""
    by_key: dict[str, SourceLine] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        for number, (key, place) in enumerate(_walk(path, root) if root else ()):
            if number == MOST_VALUES:
                raise refused(path, None, f"more than {MOST_VALUES:,} values, with its aliases written out")
            by_key[key] = place
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    except RecursionError:
        raise refused(path, None, _TOO_DEEP) from None
    return by_key


def _walk(path: Path, node: yaml.Node, key: str = "", depth: int = 0) -> Iterator[tuple[str, SourceLine]]:
    """The dotted key and the place of each value, aliases written out: in a circle too, which ends by its depth."""
    line = node.start_mark.line + 1
    if depth > DEEPEST:
        raise refused(path, line, _TOO_DEEP)
    yield key, SourceLine(path, line, node.value if isinstance(node, yaml.ScalarNode) else "")
    if isinstance(node, yaml.MappingNode):
        merged = [value for name, value in node.value if name.tag == _MERGE]
        for value in merged:  # of several mappings the first is the strongest, and the node's own keys are stronger
            for mapping in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
                yield from _walk(path, mapping, key, depth + 1)
        if merged:
            yield key, SourceLine(path, line, "")
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                raise refused(path, name.start_mark.line + 1, "a key should be text")
            if name.tag != _MERGE:
                yield from _walk(path, value, f"{key}.{name.value}" if key else name.value, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(path, value, f"{key}[{index}]", depth + 1)


def _unreadable(path: Path, error: yaml.YAMLError) -> UsageError:
    if isinstance(error, yaml.MarkedYAMLError):
        ends = "stream end" in (error.problem or "")  # of what began further up
        mark = (ends and error.context_mark) or error.problem_mark or error.context_mark
        what = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        return refused(path, mark.line + 1 if mark else None, f"can't be read as YAML: {what}")
    return refused(path, None, f"can't be read as YAML: {' '.join(str(error).split())}")


def _check_keys(path: Path, values: Any) -> None:
    for name in values if isinstance(values, dict) else ():
        if not isinstance(name, str) or not name:
            raise refused(path, None, f"the key {name!r} is no text: quote it, or write another")
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (dict, list)):
            _check_keys(path, value)


def package_of(path: Path) -> str | None:
    """The package that a file's `# @package` line names; None where it has none. Raises `UsageError`."""
    for number, line in enumerate(_text(path)[:512].splitlines(), 1):
        if not line.strip():
            continue
        match = _HEADER.match(line.strip())
        if match is None:
            return None
        package = re.fullmatch(rf"package +({_PACKAGE})", match[1].strip())
        if package is None or "_name_" in match[1]:
            raise refused(path, number, f"{line.strip()} names no place: write # @package _global_, or keys as a.b")
        return package[1]
    return None


def check_defaults(path: Path, values: dict[str, Any]) -> None:
    """Refuse a `defaults` that Hydra can't read. Raises `UsageError`."""
    defaults = values.get("defaults", [])
    line = places(path)["defaults"].line if "defaults" in values else None
    if not isinstance(defaults, list):
        raise refused(path, line, "defaults should be a list, as `defaults: [cluster: slurm]`")
    for item in defaults:
        one = isinstance(item, dict) and len(item) == 1
        choices = next(iter(item.values())) if one else None
        names = choices if isinstance(choices, list) else [choices]
        if not isinstance(item, str) and not (one and all(name is None or isinstance(name, str) for name in names)):
            raise refused(
                path, line, "each item of defaults should be a file, or a group with a file: `cluster: slurm`"
            )


def refusal(error: Exception) -> UsageError:
    """What Hydra or OmegaConf refuses, by its first line."""
    return UsageError(f"the configuration can't be composed: {str(error).splitlines()[0]}")
