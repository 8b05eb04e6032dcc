"""Checks on the text of a user's script before it runs: whether it is Python, its imports, and its framework."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amp_launcher.around.script_source import parsed
from amp_launcher.precision.support import KERAS_BACKEND
from launcher.errors import UsageError

_IN = {
    "torch": "torch",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tf_keras": "tensorflow",
    "paddle": "paddle",
}
"""Package -> framework."""
_UNOBSERVED = {"jax", "flax"}
"""Packages that train in no framework that can be observed, for scripts that import none."""
_ON_TORCH = {"lightning", "pytorch_lightning", "accelerate", "transformers", "torchvision", "deepspeed", "timm"}
"""Packages that train in torch, for scripts that do not import torch themselves."""
_KERAS_SET = re.compile(
    rb"""^[^#\n]*(?:\[["']KERAS_BACKEND["']\]\s*=|setdefault\(\s*["']KERAS_BACKEND["'],)"""
    rb"""\s*["'](torch|tensorflow|jax)["']""",
    re.M,
)
"""`os.environ["KERAS_BACKEND"] = "torch"`, or by `setdefault`."""
_OF_BACKEND = {"tensorflow": ("tensorflow", "keras"), "torch": ("torch", "keras"), "jax": ("none", "keras on jax")}
"""Keras's backend -> framework, and what shows it. Nothing observes jax."""
MOST_FILES = 500
"""Largest number of a project's modules that are searched for its framework."""


def refuse_non_python(named: str, path: Path, *, exactly: bool) -> None:
    """Refuse a script that is not Python. Raises `UsageError`.

    A syntax error is refused where `exactly` this Python will run the script; another version may accept it.
    """
    data = path.read_bytes()
    first = data.partition(b"\n")[0].decode(errors="replace").strip()
    if path.suffix not in (".py", ".pyw", ""):
        raise UsageError(f"script={named} is not Python: its name ends in {path.suffix}{_by_cmd(named)}")
    if b"\0" in data:
        raise UsageError(f"script={named} is not Python: it is a binary file{_by_cmd(named)}")
    try:
        parsed(data)
        failure = ""
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text and "\ufffd" not in error.text else ""
        failure = f"{path}{f':{error.lineno}' if error.lineno else ''}: {error.msg}{text}"
    names_shell = any(word.rpartition("/")[2].endswith("sh") for word in first[2:].split())
    if first.startswith("#!") and "python" not in first and (failure or names_shell):
        raise UsageError(f"script={named} is not Python: its first line is {first}{_by_cmd(named)}")
    if failure and (exactly or not path.suffix):
        raise UsageError(f"script={named} can't be read as Python: {failure}")


def _by_cmd(named: str) -> str:
    of_jobs = f"; if it is a chain's: chain {shlex.quote(named)}" if named.endswith((".yaml", ".yml")) else ""
    return of_jobs or f"; to run it as it is: cmd -- {shlex.quote(named)}"


def check_program(named: str, path: Path) -> None:
    """Refuse a file that the system can't start by itself. Raises `UsageError`."""
    with path.open("rb") as stream:
        begins = stream.read(4)
    if not os.access(path, os.X_OK):
        raise UsageError(f"{named} is not executable: chmod +x {shlex.quote(named)}")
    if not begins.startswith((b"#!", b"\x7fELF")):
        raise UsageError(f"{named} names no program that runs it: its first line should be #!/bin/sh, or another")


def names_checkpoints(files: Sequence[Path]) -> bool:
    """Whether one of these files names the folder for checkpoints, by `job.checkpoint_dir()` or by its variable."""
    for path in files:
        with contextlib.suppress(OSError):
            text = path.read_bytes()
            if b"checkpoint_dir" in text or b"LAUNCHER_CHECKPOINT_DIR" in text:
                return True
    return False


def frameworks(script: Path, backend: str = "") -> dict[str, str]:
    """The frameworks that a script imports, each with the package that shows it.

    If it imports none, its own modules count. Libraries on torch count only if no framework is imported. `backend` is
    Keras's by the environment of the job, for a script that sets none.
    """
    own = itertools.islice(own_modules(script), MOST_FILES)
    return _frameworks([script], backend) or _frameworks(list(own), backend)


def _frameworks(paths: Sequence[Path], backend: str) -> dict[str, str]:
    names = {name.partition(".")[0] for path in paths for level, name in imported(path) if not level}
    text = b"".join(path.read_bytes() for path in paths) if "keras" in names else b""
    backends = [name.decode() for name in _KERAS_SET.findall(text)]
    if "keras" in names and KERAS_BACKEND.encode() not in text and backend in _OF_BACKEND:
        backends = [backend]
    # Where the variable is named otherwise too, the script may use another one.
    chosen = len({*backends}) == 1 and text.count(KERAS_BACKEND.encode()) in (0, len(backends))
    packages = {_IN[name]: name for name in sorted(names & _IN.keys()) if not (chosen and name == "keras")}
    if chosen:
        packages.setdefault(*_OF_BACKEND[backends[0]])
    elif KERAS_BACKEND.encode() in text:
        packages.setdefault("torch", KERAS_BACKEND)
    if not packages and names & _ON_TORCH:
        packages["torch"] = "a library on torch"
    if not packages and (unobserved := sorted(names & _UNOBSERVED)):
        packages["none"] = unobserved[0]
    return packages


def own_modules(script: Path, follow: Callable[[Path], bool] = lambda path: True) -> Iterator[Path]:
    """The modules beside a script, or relative to it, that it imports, directly or through such a module that is to be
    followed."""
    known, waiting = {script}, [script]
    while waiting:
        module = waiting.pop()
        for level, name in imported(module):
            folder = module.parents[level - 1] if 0 < level <= len(module.parents) else script.parent
            for path in _candidates(folder, name):
                if path not in known:
                    known.add(path)
                    if follow(path):
                        waiting.append(path)
                    yield path


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The modules that a file imports: the dots before a name (0 if it is absolute) and the name, as `a.b`.

    None if the file is not Python.
    """
    try:
        tree = parsed(path.read_bytes())
    except (SyntaxError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, ".".join(filter(None, (node.module, alias.name)))) for alias in node.names)


def _candidates(folder: Path, module: str) -> Iterator[Path]:
    """The files of a folder that are executed when the module is imported."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        yield from (path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file())
