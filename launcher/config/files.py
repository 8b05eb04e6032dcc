"""Configuration files that people write: read within bounds, mistakes reported with file and line.

A file is read twice. The first time as YAML's events, which neither expand aliases nor recurse, so that a file of any
kind is refused or known to be small; the second time as values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.errors import UsageError

MOST_BYTES = 256 * 1024
DEEPEST = 50
"""Mappings and lists within each other."""
MOST_VALUES = 10_000
"""With every alias written out."""

_PACKAGE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_HEADER = re.compile(r"#\s*@(.*)")


class Written(NamedTuple):
    """A value as it stands in a file."""

    line: int
    """From 1."""
    text: str
    """Of a list or mapping empty."""


@dataclass(slots=True)
class _Collection:
    """A list or mapping that is being read."""

    key: str
    mapping: bool
    anchor: str | None
    values: int = 1
    name: str | None = None
    """Of a mapping: the key whose value comes next."""
    items: int = 0

    def place(self) -> str:
        """The dotted key of the value that comes next."""
        if not self.mapping:
            return f"{self.key}[{self.items}]"
        return f"{self.key}.{self.name}" if self.key else str(self.name)


@dataclass(slots=True)
class _Reader:
    path: Path
    written: dict[str, Written] = field(default_factory=dict)
    open: list[_Collection] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    documents: int = 0

    def take(self, event: yaml.Event) -> None:
        assert event.start_mark is not None
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise refused(self.path, line, "a second document begins; a configuration file holds one")
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = self.open.pop()
            if ended.anchor:
                self.sizes[ended.anchor] = ended.values
            self._count(ended.values, line)
        elif isinstance(event, yaml.NodeEvent):
            self._value(event, line)

    def _value(self, event: yaml.NodeEvent, line: int) -> None:
        around = self.open[-1] if self.open else None
        if around and around.mapping and around.name is None:
            if not isinstance(event, yaml.ScalarEvent):
                raise refused(self.path, line, "a key should be text")
            around.name = event.value
            return
        key = around.place() if around else ""
        if around:
            around.items += 1
            around.name = None
        text = event.value if isinstance(event, yaml.ScalarEvent) else ""
        self.written[key] = Written(line, text)
        if isinstance(event, yaml.CollectionStartEvent):
            if len(self.open) == DEEPEST:
                raise refused(self.path, line, f"lists and mappings are nested more than {DEEPEST} deep")
            self.open.append(_Collection(key, isinstance(event, yaml.MappingStartEvent), event.anchor))
            if event.anchor:
                self.sizes.pop(event.anchor, None)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in (collection.anchor for collection in self.open):
                raise refused(self.path, line, f"*{event.anchor} stands within the value that it names")
            self._count(self.sizes.get(event.anchor or "", 1), line)
        else:
            if event.anchor:
                self.sizes[event.anchor] = 1
            self._count(1, line)

    def _count(self, values: int, line: int) -> None:
        if not self.open:
            return
        self.open[-1].values += values
        if self.open[-1].values > MOST_VALUES:
            raise refused(self.path, line, f"more than {MOST_VALUES:,} values, with its aliases written out")


def refused(path: Path, line: int | None, what: str) -> UsageError:
    return UsageError(f"{path}{f':{line}' if line else ''}: {what}")


def read(path: Path, *, shipped: bool = False) -> dict[str, Any]:
    """The mapping that a file holds, `${...}` and all; empty for an empty file. Bounds are not checked for a `shipped`
    file. Raises `UsageError`."""
    text = _text(path)
    written = {} if shipped else _scan(path, text)
    try:
        values = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    except OmegaConfBaseException as error:  # a `${...}` without end
        place = written.get(str(error.full_key))
        raise refused(path, place and place.line, str(error).splitlines()[0]) from None
    except (ValueError, OverflowError, TypeError) as error:  # a number of 5,000 digits, a key that can't be one
        raise refused(path, None, str(error)) from None
    if isinstance(values, list) or (values and written.keys() == {""}):
        raise refused(path, written[""].line, "a configuration file holds keys with values, as `batch: 256`")
    assert isinstance(values, dict)
    _check_keys(path, values, written)
    return values  # type: ignore[return-value]  # whose keys are checked to be text


def written(path: Path) -> dict[str, Written]:
    """What stands in a file, by dotted key, of an item of a list as `flags[0]`. Raises `UsageError`."""
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


def _scan(path: Path, text: str) -> dict[str, Written]:
    reader = _Reader(path)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            reader.take(event)
    except yaml.YAMLError as error:
        raise _unreadable(path, error) from None
    return reader.written


def _unreadable(path: Path, error: yaml.YAMLError) -> UsageError:
    if isinstance(error, yaml.MarkedYAMLError):
        ends = "stream end" in (error.problem or "")  # of what began further up
        mark = (ends and error.context_mark) or error.problem_mark or error.context_mark
        what = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        return refused(path, mark.line + 1 if mark else None, f"can't be read as YAML: {what}")
    return refused(path, None, f"can't be read as YAML: {' '.join(str(error).split())}")


def _check_keys(path: Path, values: Any, written: dict[str, Written], key: str = "") -> None:
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        place = f"{key}[{name}]" if isinstance(values, list) else f"{key}.{name}" if key else str(name)
        if isinstance(values, dict) and (not isinstance(name, str) or not name):
            raise refused(path, None, f"the key {name!r} is no text: quote it, or write another")
        if isinstance(value, (dict, list)):
            _check_keys(path, value, written, place)
        elif value is not None and not isinstance(value, (str, int, float)):
            line = written[place].line if place in written else None
            raise refused(path, line, f"{place} is a {type(value).__name__}; write text or a number")


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
    line = written(path)["defaults"].line if "defaults" in values else None
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
