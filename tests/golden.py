"""Golden files: compared byte for byte, written anew by `make golden`, reviewed as a diff."""

from __future__ import annotations

import difflib
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

SHELLCHECK = (f"{sysconfig.get_path('scripts')}/shellcheck", f"--rcfile={Path(__file__).parents[1] / '.shellcheckrc'}")


def check(path: Path, text: str) -> None:
    """Fail unless the file holds exactly this text."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; `make golden` writes it"
    assert text == path.read_text(encoding="utf-8"), (
        f"{path} differs; if that is meant, `make golden` and review the diff"
    )


def check_difference(path: Path, text: str, base: str) -> None:
    """Fail unless the file holds what is different in this text from `base`, which has a golden file itself: its own
    lines, and those of `base` that have nothing in their place."""
    old, new = base.splitlines(), text.splitlines()
    lines = []
    for tag, first, last, start, end in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "delete":
            lines += [f"- {line}" for line in old[first:last]]
        elif tag != "equal":
            lines += [f"+ {line}" for line in new[start:end]]
    check(path, "\n".join(lines) + "\n")


def shellcheck(scripts: Mapping[str, str]) -> None:
    """Fail if shellcheck reports anything in these scripts, given by name. A file of differences is no script that it
    could read, so it reads what was rendered."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in scripts.items():
            Path(folder, f"{name}.sh").write_text(text, encoding="utf-8")
        names = [f"{name}.sh" for name in scripts]
        ended = subprocess.run([*SHELLCHECK, *names], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
