"""Environment variables that a script sets before it imports its framework.

The wrapper imports the framework before the script runs, and what a framework reads as it is imported is fixed then: it
is to read what it would read in the script. Only what the text shows is known: constants that the file sets at its top.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from typing import Any

from amp_launcher.around import script_source, wrap
from amp_launcher.typed import SettingsError


@contextlib.contextmanager
def as_in_script(wrapper: str, packages: Collection[str], own: Collection[str] = ()) -> Iterator[None]:
    """Import a framework, which is these packages, in this context. In the process of this wrapper around a script the
    environment is the script's, and behind it as before. `own` are variables that o1 needs: one that is set stays."""
    if wrapper not in sys.orig_argv:
        yield
        return
    before = dict(os.environ)
    os.environ.update(_of_script(wrapper, packages, own))
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _of_script(wrapper: str, packages: Collection[str], own: Collection[str]) -> dict[str, str]:
    try:
        started = wrap.parse(sys.orig_argv[sys.orig_argv.index(wrapper) + 1 :], wrapper.split(".")[1])
        found = set_before(started.file.read_bytes(), packages)
    except (SettingsError, OSError):  # which the wrapper says
        return {}
    kept = [name for name in own if name in os.environ and started.chosen.settings.amp.level == "o1"]
    return {name: value for name, value in found.items() if name not in kept}


def set_before(text: str | bytes, packages: Collection[str]) -> dict[str, str]:
    """The variables that the text of a Python file sets before it imports one of these packages, or another whose name
    begins like one."""
    found: dict[str, str] = {}
    try:
        body = script_source.parsed(text).body
    except SyntaxError:
        return {}
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            if any(name.startswith(tuple(packages)) for name in module):
                break
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
            if _is_environ(target.value) and None not in (pair := (_text(target.slice), _text(node.value))):
                found.update([pair])  # type: ignore[list-item]
        elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
            _call(call, found)
    return found


def _call(call: ast.Call, found: dict[str, str]) -> None:
    """`os.environ.setdefault(NAME, TEXT)`, and `update` of a dictionary or of keywords."""
    method = call.func
    if not isinstance(method, ast.Attribute) or not _is_environ(method.value):
        return
    if method.attr == "setdefault" and len(call.args) == 2:
        name, value = map(_text, call.args)
        if name is not None and value is not None and name not in os.environ:
            found.setdefault(name, value)
    elif method.attr == "update":
        pairs = [(keyword.arg, _text(keyword.value)) for keyword in call.keywords]
        for given in call.args:
            if isinstance(given, ast.Dict):
                pairs += [(_text(key), _text(value)) for key, value in zip(given.keys, given.values, strict=True)]
        found.update({name: value for name, value in pairs if name is not None and value is not None})


def _is_environ(node: ast.AST) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _text(node: Any) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
