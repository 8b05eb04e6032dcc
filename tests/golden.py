"""Golden files: compared byte for byte, written anew by `make golden`, reviewed as a diff."""

from __future__ import annotations

import difflib
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

SHELLCHECK = (f"{sysconfig.get_path('scripts')}/shellcheck", f"--rcfile={Path(__file__).parents[1] / '.shellcheckrc'}")


def assert_text(path: Path, text: str) -> None:
    """Fail unless the file holds exactly this text."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; `make golden` writes it"
    assert text == path.read_text(encoding="utf-8"), (
        f"{path} differs; if that is meant, `make golden` and review the diff"
    )


def check_difference(path: Path, text: str, base: str) -> None:
    """Fail unless the file holds the difference of this text from `base`, as that is rendered now; it has a golden file
    itself."""
    assert_text(path, difference(text, base))


def difference(text: str, base: str) -> str:
    """How this text differs from `base`: for each place the line of `base` before it, its lines that are gone, and the
    new ones. The text follows from `base` and the difference, so no line can be lost or moved unseen."""
    old, new = base.split("\n"), text.split("\n")
    lines = []
    for tag, first, last, start, end in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag != "equal":
            lines.append(f"@ {_place(old, first)}")
            lines += [f"- {line}" for line in old[first:last]]
            lines += [f"+ {line}" for line in new[start:end]]
    return "".join(f"{line}\n" for line in lines)


def _place(lines: Sequence[str], number: int) -> str:
    """The line before this one, and which one it is of those that are the same."""
    if not number:
        return "beginning"
    before = lines[number - 1]
    same = lines.count(before)
    return before if same == 1 else f"{before} ({lines[:number].count(before)} of {same})"


def shellcheck(scripts: Mapping[str, str]) -> None:
    """Fail if shellcheck reports anything in these scripts, given by name. A file of differences is no script that it
    could read, so it reads what was rendered."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in scripts.items():
            Path(folder, f"{name}.sh").write_text(text, encoding="utf-8")
        names = [f"{name}.sh" for name in scripts]
        ended = subprocess.run([*SHELLCHECK, *names], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
