"""What the text of a user's script shows before it runs: that it is Python, what it imports, and its framework."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import UsageError

_IN = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tf_keras": "tensorflow",
    "paddle": "paddle",
}
"""The framework that a package is."""
_ON_TORCH = {"lightning", "pytorch_lightning", "accelerate", "transformers", "torchvision", "deepspeed", "timm"}
"""Packages that train in torch, for scripts that leave its import to them."""
_KERAS_ON = "KERAS_BACKEND"
"""The variable that chooses Keras's framework; a script that sets it decides that by itself."""
MOST_FILES = 500
"""Modules of a project that are read for its framework."""


def check(named: str, path: Path, *, exactly: bool) -> None:
    """Refuse a script that is not Python; one with a syntax error where `exactly` this Python will run it, as another
    version may read more. Raises `UsageError`."""
    data = path.read_bytes()
    first = data.partition(b"\n")[0].decode(errors="replace").strip()
    if path.suffix not in (".py", ".pyw", ""):
        raise UsageError(f"script={named} is not Python: its name ends in {path.suffix}")
    if b"\0" in data:
        raise UsageError(f"script={named} is not Python: it is a binary file")
    try:
        _parsed(data)
        failure = ""
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        failure = f"{path}{f':{error.lineno}' if error.lineno else ''}: {error.msg}{text}"
    if first.startswith("#!") and "python" not in first and (failure or _names_shell(first)):
        raise UsageError(f"script={named} is not Python: its first line is {first}")
    if failure and (exactly or not path.suffix):
        raise UsageError(f"script={named} can't be read as Python: {failure}")


def _names_shell(first: str) -> bool:
    return any(word.rpartition("/")[2].endswith("sh") for word in first[2:].split())


def frameworks(script: Path) -> dict[str, str]:
    """The frameworks that a script imports, or where it imports none itself, those of its own modules; each with what
    shows it. Libraries on torch count where nothing else does."""
    return _frameworks([script]) or _frameworks(list(own_modules(script)))


def _frameworks(paths: Sequence[Path]) -> dict[str, str]:
    names = {name.partition(".")[0] for path in paths for name in imported(path)}
    found = {_IN[name]: name for name in sorted(names & _IN.keys())}
    if "keras" in names and any(_KERAS_ON.encode() in path.read_bytes() for path in paths):
        found.setdefault("torch", _KERAS_ON)
    return found or dict.fromkeys(["torch"] * bool(names & _ON_TORCH), "a library on torch")


def own_modules(script: Path) -> Iterator[Path]:
    """The modules beside a script that it, or a module beside it, imports."""
    seen, waiting = {script}, [script]
    while waiting and len(seen) < MOST_FILES:
        for name in imported(waiting.pop()):
            for path in candidates(script.parent, name):
                if path not in seen:
                    seen.add(path)
                    waiting.append(path)
                    yield path


def imported(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports absolutely, as `a.b`; nothing where it is no Python."""
    try:
        tree = _parsed(path.read_bytes())
    except (SyntaxError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def candidates(folder: Path, module: str) -> Iterator[Path]:
    """The files of a folder that importing the module reads."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        yield from (each for each in (base / "__init__.py", base.with_name(f"{base.name}.py")) if each.is_file())


def _parsed(data: bytes) -> ast.Module:
    """The text of a Python file as a tree. Raises `SyntaxError`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the script's own text, which Python gives when it runs
            return ast.parse(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is nested too deep") from None
