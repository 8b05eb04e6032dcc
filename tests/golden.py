"""Golden files: compared byte for byte, written anew by `make golden`, reviewed as a diff."""

from __future__ import annotations

import difflib
import os
from pathlib import Path


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
