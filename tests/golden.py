"""Golden files: compared byte for byte, written anew by `make golden`, reviewed as a diff."""

from __future__ import annotations

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
