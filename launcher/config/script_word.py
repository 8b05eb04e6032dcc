"""The first word of `run`, `plan` and `compare` where it is a file: the user's own script."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from amp_launcher.around.script import in_image
from amp_launcher.typed import nearest
from launcher.config.schema import GROUPS, annotation_of
from launcher.errors import UsageError

NO_PAIR = re.compile(r"~|\+{0,2}(?:env|secrets)\.[^.]+$")
"""Overrides without `=`: those that remove a value, and those that pass a variable of this shell."""

_STARTERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "srun", "mpirun")
"""Programs that people start their scripts with."""


def is_script(word: str) -> bool:
    """Whether a word names a script: any `FILE.py` or `image:FILE`, any word with a slash, or an existing file."""
    if "=" in word or word in GROUPS or annotation_of(word) is not None:
        return False
    return word.endswith(".py") or in_image(word) or ("/" in word and word[0] != "+") or os.path.isfile(word)


def spelled_out(words: Sequence[str]) -> tuple[str, ...]:
    """The overrides with a script as first word rewritten to `recipe=script script=FILE`; others are unchanged.

    Raises `UsageError` for a second script, and for arguments of the script among the overrides.
    """
    plain = [word for word in words[1:] if "=" not in word and not NO_PAIR.match(word)]
    if not words or not is_script(words[0]):
        late = next((word for word in plain if is_script(word)), None)
        if late is None:
            return tuple(words)
        raise UsageError(f"{late}: a script has to be the first word: python -m launcher {late} ... (command line)")
    script, *rest = words
    for word in plain:
        if word not in GROUPS and annotation_of(word) is None:
            raise UsageError(
                f"{word} is not key=value; arguments of the script go after --: {script} ... -- {word} (command line)"
            )
    keys = {word.partition("=")[0].lstrip("+"): word for word in rest}
    other = keys.get("script", "")
    if other and other.partition("=")[2] != script:
        raise UsageError(f"{script} and {other} are two scripts; name one (command line)")
    recipe = keys.get("recipe", "recipe=script")
    return (recipe, f"script={script}", *(word for word in rest if word not in (recipe, other)))


def without_starter(words: Sequence[str]) -> str:
    """What to say of a command line as `torchrun train.py`; empty where its first word starts no scripts."""
    starter = os.path.basename(words[0])
    if starter not in _STARTERS:
        return ""
    named = next((word for word in words[1:] if word.endswith(".py")), None)
    modules = [file for flag, word in itertools.pairwise(words) if flag == "-m" and (file := _module_file(word))]
    script = modules[0] if modules else named or "SCRIPT"
    more = "" if starter.startswith("python") else "; gpus=N train.processes=N is N processes of it on each node"
    path = "PYTHONPATH=. " if modules else ""  # where -m finds a module's others
    return f"{starter} is not needed: {path}python -m launcher {script} -- ARGUMENTS{more}"


def meant(word: str, *, exactly: bool = False) -> str:
    """`; did you mean FILE.py?` for a word that is close to the name of a script in this folder; `; NAME is named by
    its file, FILE` for a module, and for a program in Python, as packages install them; else an empty string.

    With `exactly`, only for a word that lacks the `.py`.
    """
    if os.path.isdir(word):
        return f"; {word} is a folder: name a script in it, as {word}/train.py"
    if "." in word and (module := _module_file(word)):
        return f"; a module is named by its file, {module}"
    program = shutil.which(word, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if not exactly and program and _is_python(Path(program)):
        return f"; a program is named by its file, {program}"
    scripts = sorted(path.name for path in Path().glob("*.py"))
    name = word if "." in word else f"{word}.py"
    return nearest(name, {name} & set(scripts) if exactly else scripts)


def _is_python(program: Path) -> bool:
    with contextlib.suppress(OSError), program.open("rb") as file:
        return re.match(rb"#!.*python", file.readline(256)) is not None
    return False


def _module_file(module: str) -> str | None:
    file = f"{module.replace('.', '/')}.py"
    return next((path for path in (file, f"src/{file}") if os.path.isfile(path)), None)
