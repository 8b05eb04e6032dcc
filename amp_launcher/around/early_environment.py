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

from amp_launcher.around import random_draws, script_source, wrap
from amp_launcher.typed import SettingsError


@contextlib.contextmanager
def as_in_script(wrapper: str, packages: Collection[str], own: Collection[str] = ()) -> Iterator[None]:
    """Import a framework, which is these packages, in this context. In the process of this wrapper around a script the
    environment is the script's, and behind it as before, and what is drawn is noted. `own` are variables that o1 needs:
    one that is set stays."""
    if wrapper not in sys.orig_argv:
        yield
        return
    before = dict(os.environ)
    os.environ.update(_of_script(wrapper, packages, own))
    try:
        with random_draws.noted():
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
        defaults = isinstance(node, ast.Expr) and _method(node.value) == "setdefault"
        for name, value in _set_by(node):
            if name is not None and value is not None and not (defaults and (name in os.environ or name in found)):
                found[name] = value
    return found


def _set_by(node: ast.stmt) -> Iterator[tuple[str | None, str | None]]:
    """The names and values, None where they are no constants, of `os.environ[NAME] = TEXT`, of `setdefault(NAME, TEXT)`
    and of `update` of a dictionary or of keywords."""
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
        if _is_environ(target.value):
            yield _text(target.slice), _text(node.value)
    elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
        if _method(call) == "setdefault" and len(call.args) == 2:
            yield _text(call.args[0]), _text(call.args[1])
        elif _method(call) == "update":
            for keyword in call.keywords:
                yield keyword.arg, _text(keyword.value)
            for given in call.args:
                if isinstance(given, ast.Dict):
                    yield from zip(map(_text, given.keys), map(_text, given.values), strict=True)


def _method(node: ast.expr) -> str:
    """The method of `os.environ` that is called; empty for anything else."""
    method = node.func if isinstance(node, ast.Call) else None
    return method.attr if isinstance(method, ast.Attribute) and _is_environ(method.value) else ""


def _is_environ(node: ast.AST) -> bool:
    return ast.unparse(node) in ("os.environ", "environ")


def _text(node: Any) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
