"""The guests of the family files, read as text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FRAMEWORKS = ("torch", "tensorflow", "paddle")
MODES = ("o0", "o1", "script")


@dataclass(frozen=True, kw_only=True)
class Guest:
    """A script, and how it is run."""

    framework: str
    family: str
    name: str
    text: str
    verdicts: Mapping[str, str | None]
    """By mode, those that it is run in."""
    words: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    imported: str = ""
    fails: Sequence[str] = ()

    def script(self, *, by_hand: bool) -> str:
        """The whole text; with autocast where the script has `by_hand`, or without."""
        head = (HERE / f"head_{self.framework}.py").read_text()
        return f"{head.replace('BY_HAND', str(by_hand))}\n{self.text}"


def read() -> list[Guest]:
    """All guests, in the order of their files."""
    return [
        guest
        for framework in FRAMEWORKS
        for file in sorted(HERE.glob(f"{framework}_*.py"))
        for guest in _of(file, framework)
    ]


def _of(file: Path, framework: str) -> list[Guest]:
    text = file.read_text()
    lines = text.splitlines()
    return [
        _guest(node, lines, framework, file.stem)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]


def _guest(node: ast.FunctionDef, lines: list[str], framework: str, family: str) -> Guest:
    (header,) = node.decorator_list
    assert isinstance(header, ast.Call) and ast.unparse(header.func) == "guest", f"{family}.{node.name}"
    given: dict[str, Any] = {word.arg: ast.literal_eval(word.value) for word in header.keywords if word.arg}
    verdicts = {mode: given.pop(mode) for mode in MODES if mode in given}
    body = textwrap.dedent("\n".join(lines[node.body[0].lineno - 1 : node.end_lineno]))
    return Guest(framework=framework, family=family, name=node.name, text=body, verdicts=verdicts, **given)
